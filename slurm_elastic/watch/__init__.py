"""Everything that people and their tools look at: status, the read door, the page, doctor, and the
watchdog.
"""
