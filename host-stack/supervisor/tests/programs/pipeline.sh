# Numbers through a pipeline of three shells and awk, until there is a file `stop`; awk says whether all came, once.
# Now and then a command is forked, a subshell, a background job.
i=0
while [ ! -e stop ]; do
    echo $i
    i=$((i + 1))
    [ $((i % 50)) = 0 ] && /bin/true
    [ $((i % 70)) = 0 ] && : $(echo sub | tr a-z A-Z)
done | while read -r x; do
    echo $((x * 2))
    [ $((x % 90)) = 0 ] && { (exit 7) & wait $! ; [ $? = 7 ] || echo wrong status; }
done | awk '$1 != 2 * n { print "wrong", $0, n; exit 1 } { n++ } END { print (n > 10 ? "right" : "wrong"), n }'
