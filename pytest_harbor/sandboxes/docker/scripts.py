"""The shell scripts that run inside a container, for any POSIX shell.

They use shell builtins and ``grep`` only, so that busybox, dash and bash all do.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

SHELL: Final = "/bin/sh"
"""By its full name: a task's own PATH must not decide how we run commands."""

MARKER: Final = "PYTEST_HARBOR_EXEC"
"""The variable that tells which exec a process belongs to."""

KEEP_ALIVE: Final = "while :; do sleep 2147483; done"
"""The container's own command: older busybox has no ``sleep infinity``, and an agent's
``pkill sleep`` must not end the sandbox."""

# Beside its marks it reports how many processes of the container the kernel has killed for
# memory, by cgroup v2 or v1: the daemon tells that of a container's main process alone.
#
# $1 token, $2 working directory, $3 names of tools to look for, then the command.
# Standard error of the wrapper itself goes nowhere: bash would report signals there.
_WRAPPER: Final = """\
_ph_token=$1 _ph_dir=$2 _ph_ask=$3
shift 3
exec 3>&2 2>/dev/null
_ph_field() { shift 21; _ph_ticks=$1; }
_ph_ticks= _ph_stat= _ph_tools=? _ph_kills=
_ph_count() {
  for _ph_file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    while read -r _ph_key _ph_value; do
      [ "$_ph_key" = oom_kill ] && _ph_kills=$_ph_value
    done <$_ph_file
  done
}
_ph_count
_ph_stat=$(IFS= read -r _ph_line </proc/self/stat && printf %s "$_ph_line")
[ -n "$_ph_stat" ] && _ph_field $_ph_stat
if [ -n "$_ph_ask" ]; then
  _ph_tools=
  for _ph_tool in $_ph_ask; do
    command -v $_ph_tool >/dev/null && _ph_tools=$_ph_tools,$_ph_tool
  done
fi
printf '@@%s:begin:%s:%s:%s@@' "$_ph_token" "$_ph_ticks" "$_ph_tools" "$_ph_kills" >&3
if cd "$_ph_dir"; then
  unset OLDPWD
  (exec "$@" @STDIN@ 2>&3 3>&-)
  _ph_code=$?
else
  printf 'cannot enter the working directory %s\\n' "$_ph_dir" >&3
  _ph_code=126
fi
_ph_count
printf '@@%s:end:%s:%s@@' "$_ph_token" "$_ph_code" "$_ph_kills"
printf '@@%s:end:%s:%s@@' "$_ph_token" "$_ph_code" "$_ph_kills" >&3
exit "$_ph_code"
"""

WRAPPER: Final = _WRAPPER.replace("@STDIN@ ", "")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHELL_VARIABLES = re.compile(
    r"_|BASH.*|E?UID|FUNCNAME|GROUPS|HOSTNAME|IFS|LINENO|OLDPWD|OPT.*|PIPESTATUS|PPID|PS\d"
    r"|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|_ph_.*"
)
"""What a shell keeps for itself, or reads on the way."""


def script(
    arguments: Sequence[str], env: Mapping[str, str], argv: Sequence[str]
) -> str | None:
    """The wrapper with all that it is told, for a shell that reads it from its input.

    ``arguments`` are the wrapper's own. ``None`` when a variable of ``env`` cannot be set so
    that the command sees the same as by the daemon.
    """
    if not all(_NAME.fullmatch(name) for name in env):
        return None
    if any(_SHELL_VARIABLES.fullmatch(name) for name in env):
        return None
    exports = "".join(f"export {name}={shlex.quote(env[name])}\n" for name in env)
    given = " ".join(map(shlex.quote, (*arguments, *argv)))
    # In the subshell, so that PATH and the like are the command's and not the wrapper's.
    command = _WRAPPER.replace(
        '(exec "$@" @STDIN@ ', f'({exports}exec "$@" </dev/null '
    )
    return f"set -- {given}\n{command}"


# $1 the exec's marker value, $2 the clock tick when it began (0: unknown).
#
# A process belongs to the exec when it carries its marker, or when it began later,
# carries no other exec's marker and does not descend from anything older. Root without
# CAP_SYS_PTRACE cannot read the environment of other users' processes: it names their
# uid ("foreign 1000"), and the script is run again as that user. "clean" is the last line
# once two passes in a row have found nothing.
KILL: Final = """\
id=$1 since=$2
cd /proc || exit 1
field() { state=$1 parent=$2; shift 19; start=$1; }
stat_of() {
  text=
  while IFS= read -r line || [ -n "$line" ]; do text="$text $line"; done 2>/dev/null <"$1/stat" || return 1
  [ -n "$text" ] || return 1
  field ${text##*) }
}
uid_of() {
  uid=
  while read -r key value rest; do
    [ "$key" = Uid: ] && uid=$value && return 0
  done 2>/dev/null <"$1/status"
  return 1
}
has() { case "$1" in *" $2 "*) return 0 ;; esac; return 1; }
pids_of() { pids=" "; for file in $1; do pids="$pids${file%%/*} "; done; }
adopted() {
  at=$1
  while :; do
    eval "at=\\${p_$at:-0}"
    [ "$at" -le 1 ] && return 0
    has "$ours" "$at" && return 0
    has "$marked" "$at" && return 1
    eval "began=\\${s_$at:-0}"
    [ "$began" -lt "$since" ] && return 1
  done
}
uid_of $$ ; me=$uid
passes=0 quiet=0
while [ $passes -lt 60 ] && [ $quiet -lt 2 ]; do
  passes=$((passes + 1))
  pids_of "$(grep -l "@MARKER@=$id" [0-9]*/environ 2>/dev/null)"; ours=$pids
  pids_of "$(grep -l "@MARKER@=" [0-9]*/environ 2>/dev/null)"; marked=$pids
  pids_of "$(grep -L "@MARKER@=" [0-9]*/environ 2>/dev/null)"; bare=$pids
  alive=
  for pid in [0-9]*; do
    stat_of $pid || continue
    case $state in Z|X) continue ;; esac
    eval "p_$pid=$parent s_$pid=$start"
    alive="$alive $pid"
  done
  victims=
  for pid in $alive; do
    [ $pid -eq 1 ] || [ $pid -eq $$ ] && continue
    if has "$ours" $pid; then victims="$victims $pid"; continue; fi
    has "$marked" $pid && continue
    eval "began=\\$s_$pid"
    if ! has "$bare" $pid; then
      uid_of $pid || continue
      if [ "$uid" != "$me" ]; then
        [ $since -eq 0 ] || [ $began -ge $since ] && echo "foreign $uid"
        continue
      fi
    fi
    [ $since -gt 0 ] && [ $began -ge $since ] && adopted $pid && victims="$victims $pid"
  done
  if [ -z "$victims" ]; then quiet=$((quiet + 1)); continue; fi
  quiet=0
  kill -STOP $victims 2>/dev/null
  kill -KILL $victims 2>/dev/null
  sleep 0.02 2>/dev/null
done
[ $quiet -ge 2 ] && echo clean
""".replace("@MARKER@", MARKER)
