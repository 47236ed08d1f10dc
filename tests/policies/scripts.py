"""Batch scripts, and whether their shell certainly dies of the signal by which a job saves itself."""

from __future__ import annotations

DYING = (
    "#!/bin/bash\npython3 prog.py\n",
    "#!/bin/sh\n#SBATCH -t 10\n./prog && echo done\n",
    "#!/usr/bin/env bash\n./prog\n",
    "#! /bin/dash -e\n./prog ./x ../y z.sh\n",
    "#!/bin/bash\n# trap save USR1; exec prog\n  # source x\n./prog\n",
    "#!/bin/bash\n./execute; extrapolate; resource_use\n",
)
OTHERS = (
    "",
    "#!/bin/bash\nexec python3 prog.py\n",
    "#!/bin/bash\ntrap 'kill -USR1 $pid' USR1\nprog & pid=$!\nwait\n",
    "#!/bin/bash\nsource traps.sh\nprog\n",
    "#!/bin/bash\nset -e; . ./traps.sh\nprog\n",
    "#!/bin/bash\n. ./traps.sh\nprog\n",
    "#!/bin/bash\nmodule load x; eval $(x)\n",
    "#!/usr/bin/python3\nimport prog\n",
    "#!/usr/bin/env -S python3 -u\nimport prog\n",
    "#!/bin/tcsh\nprog\n",
    "python3 prog.py\n",
)
