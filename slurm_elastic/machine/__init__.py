"""Programs that run on machines, or as root beside the services; each of them does only what it
must.
"""
