"""cutline.storage"""
