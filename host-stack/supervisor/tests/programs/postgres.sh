# A PostgreSQL server, with some settings, and its benchmark, until it is stopped: no transaction is lost, none is half there.
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
export PGDATA=$PWD/data PGHOST=$PWD PGUSER=snaprig PGDATABASE=postgres LC_ALL=C
failed() { echo "wrong: $1"; cat log; exit 1; }
"$bin/initdb" -U snaprig -A trust -N >log 2>&1 || failed initdb
"$bin/postgres" -k "$PWD" -c listen_addresses= -c shared_buffers=16MB "$@" >>log 2>&1 &
server=$!
until "$bin/pg_isready" -q; do kill -0 $server 2>/dev/null || failed "the server"; done
"$bin/pgbench" -q -i -s 2 >>log 2>&1 || failed "the tables"
echo ready
wanted=0
while [ ! -e stop ]; do
    "$bin/pgbench" -n -c 4 -j 2 -t 200 >run 2>>log || { cat run; failed "the benchmark"; }
    grep -q "actually processed: 800/800" run || { cat run; failed "the benchmark's count"; }
    wanted=$((wanted + 800))
done
sums='select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches),
    (select sum(tbalance) from pgbench_tellers), (select sum(delta) from pgbench_history)'
[ "$("$bin/psql" -Atc "with s(a, b, t, h) as ($sums) select a = b and b = t and t = h from s")" = t ] || failed sums
found=$("$bin/psql" -Atc 'select count(*) from pgbench_history')
[ "$found" = $wanted ] || failed "$found transactions of $wanted"
kill -INT $server
wait $server || failed "the server's end"
echo right
