"""Root's part of the tunnel on the head: the interface, its peers, the firewall.

slurm-elasticd is not root. ``service`` accepts a few fixed requests from it, ``link`` runs ip and
wg, ``rules`` writes the nftables rules. The daemon decides which machines may connect.
"""
