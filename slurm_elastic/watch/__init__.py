"""The room of everything that people and their tools look at: status, the read door, the page,
doctor, the watchdog.
"""
