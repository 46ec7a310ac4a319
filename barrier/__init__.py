"""cutline.barrier"""
