# A server and a benchmark that counts up, until it is stopped: nothing is lost, nothing doubled.
port=$((20000 + $$ % 10000))
# Debian has the server in its package of tools under another name, without the service.
(exec -a redis-server redis-check-rdb --port $port --save "" --appendonly no --daemonize no >/dev/null) &
until redis-cli -p $port ping >/dev/null 2>&1; do :; done
echo ready
wanted=0
while [ ! -e stop ]; do
    redis-benchmark -p $port -c 20 -n 20000 -r 1000 -t incr -d 3 --csv >/dev/null || echo wrong: the benchmark
    wanted=$((wanted + 20000))
done
sum='local s = 0; for _, k in ipairs(redis.call("keys", "counter*")) do s = s + redis.call("get", k) end return s'
found=$(redis-cli -p $port --raw eval "$sum" 0)
[ "$found" = $wanted ] && echo right || echo "wrong: $found of $wanted"
redis-cli -p $port shutdown nosave
wait
