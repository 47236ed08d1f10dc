"""Parts that several kinds of clouds share: ownership, tags, user data, and orders whose answer was
lost. Nothing here belongs to one cloud alone.
"""
