# The line that the submit filter puts after the first line of a batch script whose job saves itself
# on a signal, if the script's shell would die of the signal. Lines here are joined to one line, so
# that error messages of the script name nearly the right lines; a comment line is left out.
#
# slurm-elastic sends all processes of such a job SIGURG (save) or SIGWINCH (save before a move),
# which no process dies of. The relay then sends the real signal to the programs below the script
# that catch it: the topmost ones, because launchers such as srun and mpirun hand it on themselves.
# A launcher's ranks die of it if they do not catch it, and the script continues after them. The ranks
# may be on other nodes, where the relay cannot see that. So LAUNCHERS is "yes" only if the job itself
# asks for this method: its user then knows that the ranks catch the signal.
# It is no child of the script, so that a plain `wait` of the script does not wait for it.
# SigCgt is a mask of 16 hexadecimal digits; dash cannot compute with all of them.
# The first line of the script may set options. With -e the relay would end at its first signal, because
# the interrupted `wait` fails. With -f it would find no children. A PATH without `sleep` would make the
# loop busy. A trap only notes its signal: zsh forgets a second one that comes while the trap of the first
# looks for the programs.
( ( set +ef; PATH=/usr/bin:/bin:${PATH-};
_relay() { for _pid in $(cat /proc/$1/task/*/children 2>/dev/null); do
_name=$(cat /proc/$_pid/comm 2>/dev/null);
case "@LAUNCHERS@:$_name" in (no:srun|no:mpirun*|no:mpiexec*|no:orterun|no:prterun|no:prun) continue;; esac;
_mask=$(sed -n "s/^SigCgt:[[:space:]]*........//p" /proc/$_pid/status 2>/dev/null);
if [ $((0x${_mask:-0} & $2)) -ne 0 ]; then kill -s $3 $_pid; else _relay $_pid $2 $3; fi; done; };
_save=; _stop=; trap "_save=1" URG; trap "_stop=1" WINCH;
while kill -0 $$ 2>/dev/null; do
if [ -n "$_save" ]; then _save=; _relay $$ @SAVE@;
elif [ -n "$_stop" ]; then _stop=; _relay $$ @STOP@;
else sleep 5 & wait $!; fi; done ) </dev/null >/dev/null 2>&1 & ) #__SLURM_ELASTIC_RELAY__
