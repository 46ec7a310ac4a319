"""cutline.coordinator"""
