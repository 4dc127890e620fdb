#!/bin/bash
# A Slurm of two virtual nodes, sealed in namespaces of its own, beside which a command runs (as root; Debian's packages):
#   tests/slurm/cluster.sh COMMAND...
# Its exit code is the command's, and everything of it dies with it. Each node has an address, a host name, a /tmp of its
# own and four GPUs that are null devices. The shipped site's partitions are there, too, with nodes that are powered down:
# enough for `sbatch --test-only`. Accounts and QOS are kept and enforced where slurmdbd and MariaDB are installed.
set -eu
[ "$(id -u)" = 0 ] || { echo "slurm: a cluster of namespaces needs root" >&2; exit 77; }
for program in slurmctld slurmd munged ip unshare; do
  command -v "$program" > /dev/null || { echo "slurm: $program is not installed (make slurm-packages)" >&2; exit 77; }
done
if [ -z "${LEONARDO_SLURM_SEALED:-}" ]; then
  export LEONARDO_SLURM_SEALED=1
  exec unshare --pid --net --mount --uts --ipc --fork --kill-child=KILL --mount-proc bash "$(realpath "$0")" "$@"
fi

trap 'exit 143' TERM # the first process of a namespace would not heed it; the command gets it, too (by timeout)
mount --make-rprivate /
place=/mnt # in memory, and in this namespace alone: nothing has to be removed, however the end comes
mount -t tmpfs -o mode=755 tmpfs "$place"
mkdir "$place/state"
export SLURM_CONF=$place/slurm.conf LEONARDO_TEST_SLURM=$place

# --- names and addresses ---
hostname control
ip link set lo up
ip link add bridge0 type bridge
ip addr add 10.77.0.254/24 dev bridge0
ip link set bridge0 up
printf '127.0.0.1 localhost\n10.77.0.254 control\n10.77.0.1 node1\n10.77.0.2 node2\n' > "$place/hosts"
mount --bind "$place/hosts" /etc/hosts

# --- configuration ---
(umask 077; head -c 128 /dev/urandom > "$place/munge.key")
for number in 0 1 2 3; do mknod -m 666 "$place/gpu$number" c 1 3; done
cat > "$place/gres.conf" << END
NodeName=node[1-2] Name=gpu Count=4 File=$place/gpu[0-3]
NodeName=lrdn[1-20] Name=gpu Count=4
NodeName=lrdn[1-20],lrdc[1-2] Name=tmpfs Count=3200G Flags=CountOnly
END
cat > "$place/slurm.conf" << END
ClusterName=test
SlurmctldHost=control(10.77.0.254)
SlurmUser=root
AuthInfo=socket=$place/munge.sock,cred_expire=5
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool-%n
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd-%n.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
EnforcePartLimits=ALL
MinJobAge=3600
KillWait=5
SlurmdTimeout=6
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendExcNodes=node[1-2]
GresTypes=gpu,tmpfs
NodeName=node[1-2] NodeAddr=10.77.0.[1-2] CPUs=8 RealMemory=16000 Gres=gpu:4
NodeName=lrdn[1-20] NodeAddr=10.77.1.[1-20] CPUs=32 RealMemory=494000 Gres=gpu:4,tmpfs:3200G State=CLOUD
NodeName=lrdc[1-2] NodeAddr=10.77.2.[1-2] CPUs=112 RealMemory=494000 Gres=tmpfs:3200G State=CLOUD
PartitionName=test Nodes=node[1-2] Default=YES MaxTime=24:00:00
PartitionName=gpu Nodes=node1 MaxTime=24:00:00
PartitionName=cpu Nodes=node2 MaxTime=24:00:00
PartitionName=boost_usr_prod Nodes=lrdn[1-20] MaxTime=24:00:00
PartitionName=dcgp_usr_prod Nodes=lrdc[1-2] MaxTime=24:00:00
END

# --- accounts and QOS ---
await() { # SECONDS WHAT COMMAND...
  local tries=$(($1 * 20)) what=$2
  shift 2
  until "$@" > /dev/null 2>&1; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { echo "slurm: $what did not start" >&2; tail -n 20 "$place"/*.log >&2; exit 1; }
    sleep 0.05
  done
}
if [ -z "${LEONARDO_SLURM_WITHOUT_ACCOUNTS:-}" ] && command -v slurmdbd mariadbd > /dev/null; then
  export MYSQL_UNIX_PORT=$place/mysql.sock
  mariadb-install-db --no-defaults --auth-root-authentication-method=normal --skip-test-db --user=root \
    --datadir="$place/mysql" > "$place/mysql-install.log" 2>&1
  mariadbd --no-defaults --user=root --datadir="$place/mysql" --socket="$MYSQL_UNIX_PORT" --skip-networking \
    --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 > "$place/mysql.log" 2>&1 &
  cat > "$place/slurmdbd.conf" << END
AuthType=auth/munge
AuthInfo=socket=$place/munge.sock
DbdHost=control
DbdAddr=10.77.0.254
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile=$place/slurmdbd.log
PidFile=$place/slurmdbd.pid
END
  chmod 600 "$place/slurmdbd.conf"
  cat >> "$place/slurm.conf" << END
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=control
AccountingStoragePass=$place/munge.sock
AccountingStorageEnforce=associations,qos,limits
AccountingStorageTRES=gres/gpu
END
  accounts=1
fi
munged --force --key-file="$place/munge.key" --socket="$place/munge.sock" --pid-file="$place/munged.pid" \
  --log-file="$place/munged.log" --seed-file="$place/munge.seed"
if [ -n "${accounts:-}" ]; then
  await 30 MariaDB mariadb --no-defaults --user=root -e 'select 1'
  slurmdbd
  await 30 slurmdbd sacctmgr -n show cluster
  qualities=boost_qos_dbg,boost_qos_lprod,boost_qos_bprod,dcgp_qos_dbg,dcgp_qos_lprod
  for request in "add cluster test" "add qos $qualities" "add account project" \
    "add user root,labuser,nobody account=project" "modify account project set qos=normal,$qualities"; do
    # shellcheck disable=SC2086 # words
    sacctmgr -i $request >> "$place/sacctmgr.log" 2>&1 || { cat "$place/sacctmgr.log" >&2; exit 1; }
  done
fi

# --- daemons and nodes ---
slurmctld
for number in 1 2; do
  unshare --pid --net --mount --uts --ipc --fork --kill-child=KILL --mount-proc bash -c "
    hostname node$number
    mkdir -p $place/tmp-node$number && chmod 1777 $place/tmp-node$number
    mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mkdir -p /tmp/node && mount -t tmpfs -o mode=1777,size=4g tmpfs /tmp/node
    ip link set lo up
    until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done
    ip addr add 10.77.0.$number/24 dev eth0
    ip link set eth0 up
    ip route add default via 10.77.0.254
    until [ -e $place/end ]; do
      slurmd -D -N node$number
      until [ ! -e $place/down-node$number ]; do sleep 0.1; done
    done" > /dev/null 2>&1 &
  holder=$!
  until inside=$(pgrep -P "$holder") && [ "$(readlink "/proc/$inside/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do
    sleep 0.02
  done
  ip link add "veth$number" type veth peer name eth0 netns "$inside"
  ip link set "veth$number" master bridge0 up
done
both_idle() { [ "$(sinfo -h -N -p test -t idle | wc -l)" = 2 ]; }
await 20 'both nodes' both_idle
"$@"
