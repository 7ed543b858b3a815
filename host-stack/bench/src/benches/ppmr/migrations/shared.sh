# Four servers of GlusterFS and what they serve, mounted in $1/mounted: seen from this shell's mount namespace, and gone when its
# standard input ends. The machine's own GlusterFS, if it has one, is left alone.
set -e
scratch=$1 server=10.78.0.1
bricks=
for brick in 1 2 3 4; do
    mkdir -p "$scratch/bricks/$brick"
    bricks="$bricks $server:$scratch/bricks/$brick"
done
mkdir "$scratch/mounted"
ip link set lo up
ip addr add $server/32 dev lo

# Processes that make themselves daemons end with their namespace.
setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc sh -ec '
    for state in /var/lib/glusterd /var/log/glusterfs /run; do mount -t tmpfs none $state; done
    mkdir /run/gluster
    glusterd -N &
    until gluster pool list; do kill -0 $!; sleep 0.05; done
    gluster --mode=script volume create shared $2 force
    # Large files are in parts on all servers, as PVFS2 has them.
    gluster --mode=script volume set shared features.shard on
    gluster --mode=script volume start shared
    : > "$1/served"
    wait' sh "$scratch" "$bricks" < /dev/null > "$scratch/servers.log" 2>&1 &
servers=$!
until [ -e "$scratch/served" ]; do kill -0 $servers; sleep 0.05; done

setpriv --pdeathsig KILL glusterfs -N --process-name fuse --volfile-server=$server --volfile-id=/shared \
    --log-file="$scratch/client.log" "$scratch/mounted" < /dev/null > /dev/null 2>&1 &
client=$!
until mountpoint -q "$scratch/mounted"; do kill -0 $client; sleep 0.02; done

echo ready
read -r end || true
umount --lazy "$scratch/mounted"
kill -KILL $client $servers
wait
