#!/bin/bash
# Runs inside the machine that `cargo xtask systemd-test` boots. A line for each check goes to `result`:
# `ok NAME`, or `FAIL NAME: WHY`. The first failure of a part ends that part; the others are still tried.
cd /
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8
exec 3>/systemd-test/result
set -x
TOP=/systemd-test
UNIT=muleteer.service

ok() { echo "ok   $1" >&3; }
fail() { echo "FAIL $1: $2" >&3; }
# check NAME COMMAND…: the command must succeed.
check() {
  local name=$1; shift
  if "$@"; then ok "$name"; else fail "$name" "$*"; fi
}
# within SECONDS COMMAND…: it must succeed some time, asked again and again.
within() {
  local until=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $until ] || return 1
    sleep 0.2
  done
}
is() { [ "$("${@:2}")" = "$1" ]; }
not() { ! "$@"; }
alive() { [ -d "/proc/$1" ] && ! grep -q '^State:.*Z' "/proc/$1/status"; }

# As the user whose agents they are. $SCOPE, $CTL and $ENV say in which service manager.
mule() { runuser -u mule -- env HOME=/home/mule "${ENV[@]}" muleteer "$@"; }
ctl() { runuser -u "$CTL" -- env "${ENV[@]}" systemctl "--$SCOPE" "$@"; }
main_pid() { ctl show -p MainPID --value $UNIT; }
state() { mule status "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["dispatches"][0]["state"])'; }
agent_pid() { mule status "$1" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["dispatches"][0]["pid"])'; }
daemon_pid() { mule status --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["daemon"]["pid"])'; }
steps() { python3 -c 'import json,sys; print(" ".join(s["action"] for s in json.load(sys.stdin)["steps"]))'; }
moved_on() { local now; now=$(main_pid); [ "$now" != 0 ] && [ "$now" != "$1" ] && is active ctl is-active $UNIT; }
# It prints problems and exits 0. Manual pages are the package's business.
quiet() { local said; said=$(runuser -u "$CTL" -- env "${ENV[@]}" systemd-analyze "$@" --man=no 2>&1); [ -z "$said" ] || { echo "     $said" >&3; false; }; }

# A service manager's part, from installing to removing. $INSTALL is how.
part() {
  local name=$1 dispatch agent before
  # A daemon started by a verb is replaced by the service's, and its agent goes on.
  dispatch=$(mule spawn developer /home/mule/project "wait" --backend subprocess --command 'sleep 3600')
  within 60 is running state "$dispatch"
  agent=$(agent_pid "$dispatch")
  check "$name: an agent runs under a daemon started on demand" alive "$agent"

  check "$name: install" "${INSTALL[@]}"
  check "$name: it is active, so it said that it is ready" is active ctl is-active $UNIT
  check "$name: the unit is enabled" is enabled ctl is-enabled $UNIT
  check "$name: systemd-analyze verify says nothing" quiet "--$SCOPE" verify "$FILE"
  check "$name: clients find it, wherever it listens" within 30 is "$(main_pid)" daemon_pid
  check "$name: the agent it found goes on" alive "$agent"
  check "$name: STATUS tells of the agent" within 30 is "1 agent runs" ctl show -p StatusText --value $UNIT
  check "$name: OOMPolicy" is continue ctl show -p OOMPolicy --value $UNIT
  before=$(main_pid)
  check "$name: installing again writes nothing" is "keep run run" "${AGAIN[@]}"
  check "$name: installing again restarts nothing" is "$before" main_pid
  check "$name: service status" "${STATUS[@]}"

  before=$(main_pid)
  check "$name: restart" ctl restart $UNIT
  check "$name: another daemon runs after a restart" moved_on "$before"
  check "$name: the agent survives a restart" alive "$agent"
  check "$name: it is adopted" within 60 is running state "$dispatch"
  check "$name: it is the same one" is "$agent" agent_pid "$dispatch"

  before=$(main_pid)
  kill -9 "$before"
  check "$name: after kill -9 another daemon runs" within 60 moved_on "$before"
  check "$name: the agent survives kill -9 of the daemon" alive "$agent"
  check "$name: it is adopted after kill -9" within 60 is running state "$dispatch"

  mkdir -p "$FILE.d"; printf '[Service]\nWatchdogSec=3\n' >"$FILE.d/watchdog.conf"; chmod -R a+rX "$FILE.d"
  ctl daemon-reload; ctl restart $UNIT
  before=$(main_pid)
  sleep 8
  check "$name: one that is well is left alone by the watchdog" is "$before" main_pid
  # Stopped, it tells nobody that it lives.
  kill -STOP "$before"
  check "$name: one that hangs is replaced" within 120 moved_on "$before"
  check "$name: the agent survives the watchdog" alive "$agent"
  check "$name: it is adopted after the watchdog" within 60 is running state "$dispatch"
  rm -r "$FILE.d"; ctl daemon-reload

  check "$name: stop" ctl stop $UNIT
  check "$name: nothing runs after a stop" is 0 main_pid
  check "$name: it ended well" is success ctl show -p Result --value $UNIT
  check "$name: the agent survives a stop" alive "$agent"
  check "$name: start again" ctl start $UNIT
  check "$name: it is adopted after a stop" within 60 is running state "$dispatch"
  check "$name: daemon stop is not undone" mule daemon stop --agents stop
  check "$name: it stays stopped" within 30 is inactive ctl is-active $UNIT
  check "$name: its agents are ended" within 60 not alive "$agent"

  check "$name: uninstall" "${UNINSTALL[@]}"
  check "$name: the unit is gone" not test -e "$FILE"
  check "$name: uninstalling again does nothing" is "" "${UNINSTALLED[@]}"
}

useradd -m mule 2>/dev/null
UID_OF=$(id -u mule)
runuser -u mule -- mkdir -p /home/mule/project

# The machine's service, which runs mule's agents.
SCOPE=system CTL=root FILE=/etc/systemd/system/$UNIT ENV=(A=b)
INSTALL=(muleteer service install --system --run-as mule)
again() { muleteer service install --system --run-as mule --json | steps; }
AGAIN=(again)
STATUS=(muleteer service status --system --run-as mule)
UNINSTALL=(muleteer service uninstall --system --run-as mule)
uninstalled() { muleteer service uninstall --system --json | steps; }
UNINSTALLED=(uninstalled)
part system

# A user's own service.
if systemctl start "user@$UID_OF.service" && within 30 test -S "/run/user/$UID_OF/systemd/private"; then
  SCOPE=user CTL=mule FILE=/home/mule/.config/systemd/user/$UNIT
  ENV=(HOME=/home/mule "XDG_RUNTIME_DIR=/run/user/$UID_OF")
  INSTALL=(mule service install)
  again() { mule service install --json | steps; }
  STATUS=(mule service status)
  UNINSTALL=(mule service uninstall)
  uninstalled() { mule service uninstall --json | steps; }
  part user
else
  fail user "no user manager runs here"
fi
journalctl --no-pager -n 200 >"$TOP/journal" 2>&1
echo "done" >&3
