"""cutline.participant"""
