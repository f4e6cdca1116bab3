#!/usr/bin/env bash
# A whole SLURM on this machine, to try everything on: one node with two fake GPUs, and two partitions of which
# "high" preempts "low" (whose jobs are requeued). The tests marked slurm use it, too.
#
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge     what it needs (Debian, Ubuntu)
#   tests/slurm/one_node_slurm.sh start       start it (as root); prints the line to export
#   tests/slurm/one_node_slurm.sh status      say what runs
#   tests/slurm/one_node_slurm.sh kill-node | start-node      the faults that the tests make
#   tests/slurm/one_node_slurm.sh stop        cancel its jobs and stop it
#
# Everything it writes is below ZO_SLURM_DIR (/var/lib/zo-slurm); nothing in /etc is read or changed.
set -euo pipefail
DIR=${ZO_SLURM_DIR:-/var/lib/zo-slurm}
export SLURM_CONF=$DIR/slurm.conf
SOCKET=$DIR/munge/socket

fail() { echo "one_node_slurm: $1" >&2; exit 2; }

running() { # name of a daemon -> is the process in its pid file alive, and no zombie?
  [ -s "$DIR/$1.pid" ] && grep -q "^State:.[^Z]" "/proc/$(cat "$DIR/$1.pid" 2>/dev/null)/status" 2>/dev/null
}

end() { # name of a daemon, signal
  if running "$1"; then kill "-$2" "$(cat "$DIR/$1.pid")"; fi
  for _ in $(seq 100); do running "$1" || return 0; sleep 0.1; done
  fail "$1 does not end"
}

check() {
  [ "$(id -u)" = 0 ] || fail "must be run as root (slurmd starts processes for other users)"
  for program in slurmctld slurmd squeue munged mungekey; do
    command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || fail \
      "$program is missing: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
  done
  PATH=$PATH:/usr/sbin:/sbin
}

configure() {
  mkdir -p "$DIR"/{state,spool,log} && chmod 755 "$DIR"
  install -d -m 755 "$DIR/munge" && install -d -m 700 "$DIR/munge/private"
  [ -s "$DIR/munge/private/key" ] || mungekey --create --keyfile "$DIR/munge/private/key"
  for gpu in 0 1; do # SLURM wants device files to tell GPUs apart; these are /dev/null's twins
    [ -e "$DIR/gpu$gpu" ] || mknod "$DIR/gpu$gpu" c 1 3
  done
  echo "Name=gpu File=$DIR/gpu[0-1]" >"$DIR/gres.conf"
  local host; host=$(hostname -s)
  # cred_expire is also how long a requeued job waits before it may start again: 120 s unless set.
  cat >"$SLURM_CONF" <<CONF
ClusterName=one-node
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$SOCKET,cred_expire=${ZO_SLURM_REQUEUE_S:-5}
CredType=cred/munge
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmdPidFile=$DIR/slurmd.pid
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2,sched_min_interval=100000
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
GresTypes=gpu
ReturnToService=2
KillWait=20
MinJobAge=60
SlurmdTimeout=15
InactiveLimit=0
JobRequeue=1
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 RealMemory=8000 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE
PartitionName=high Nodes=$host PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
CONF
}

start_node() {
  running slurmd || slurmd
  for _ in $(seq 150); do
    case "$(sinfo -h -o %T 2>/dev/null | head -1)" in
      idle | mixed | allocated) return 0 ;;
      down*) scontrol update nodename="$(hostname -s)" state=resume 2>/dev/null || true ;;
    esac
    sleep 0.2
  done
  fail "the node does not come up; see $DIR/log"
}

start_controller() {
  running slurmctld || slurmctld
  for _ in $(seq 100); do scontrol ping 2>/dev/null | grep -q "is UP" && return 0; sleep 0.2; done
  fail "slurmctld does not answer; see $DIR/log/slurmctld.log"
}

start() {
  check
  configure
  running munged || munged --force --key-file "$DIR/munge/private/key" --socket "$SOCKET" \
    --pid-file "$DIR/munged.pid" --log-file "$DIR/log/munged.log" --seed-file "$DIR/munge/private/seed"
  start_controller
  start_node
  echo "export SLURM_CONF=$SLURM_CONF"
}

kill_node() { # as a power cut does: slurmd, what it started, and all processes of its jobs, at once and without a word
  local pids="" level
  level=$(pgrep -f "^slurmstepd: \[" || true)
  while [ -n "$level" ]; do
    pids="$pids $level"
    level=$(pgrep -P "$(echo $level | tr ' ' ',')" || true)
  done
  kill -9 "$(cat "$DIR/slurmd.pid")" $pids 2>/dev/null || true
  while running slurmd; do sleep 0.1; done
  scontrol update nodename="$(hostname -s)" state=down reason="killed by hand" # instead of waiting for SlurmdTimeout
}

stop() {
  check
  if running slurmctld; then
    scancel --full --state=PENDING,RUNNING,SUSPENDED -u "$(id -un)" 2>/dev/null || true
    for _ in $(seq 100); do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep 0.2; done
  fi
  end slurmd TERM; end slurmctld TERM; end munged TERM
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  kill-node) check; kill_node ;;
  start-node) check; start_node ;;
  status) for d in munged slurmctld slurmd; do running $d && echo "$d runs" || echo "$d does not run"; done ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
