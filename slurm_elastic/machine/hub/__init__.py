"""Root's part of the head's end of the network: the tunnel's interface, its peers, the firewall.

``service`` has the fixed verbs that slurm-elasticd, which is not root, may ask for; ``link`` drives
ip and wg, ``rules`` writes nftables' rules. Nobody says here who may come: the daemon does.
"""
