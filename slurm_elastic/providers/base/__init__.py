"""The parts that clouds share: ownership, tags, user data, orders without an answer. No cloud's
own.
"""
