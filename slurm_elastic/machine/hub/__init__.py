"""Root's part of the head's end of the network: the tunnel's interface, its peers, the firewall.

slurm-elasticd, which is not root, may ask ``service`` for a few fixed things; ``link`` runs ip and
wg, ``rules`` writes nftables' rules. Who may come in is decided by the daemon, not here.
"""
