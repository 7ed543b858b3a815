# Money that moves between accounts in transactions of SQLite, never made nor lost, until there is a file `stop`.
import os, random, sqlite3

db = sqlite3.connect("bank.db", isolation_level=None)
db.execute("pragma cache_size = 4")
db.execute("create table account (number integer primary key, money integer, text)")
db.executemany("insert into account values (?, 100, ?)", [(n, "x" * 500) for n in range(200)])
print("begun", flush=True)
draw, moves = random.Random(1), 0
while not os.path.exists("stop"):
    db.execute("begin immediate")
    for _ in range(20):
        a, b, m = draw.randrange(200), draw.randrange(200), draw.randrange(10)
        db.execute("update account set money = money - ? where number = ?", (m, a))
        db.execute("update account set money = money + ? where number = ?", (m, b))
    moves += 1
    db.execute("commit" if moves % 3 else "rollback")
total = db.execute("select sum(money) from account").fetchone()[0]
sound = db.execute("pragma integrity_check").fetchone()[0]
print("right" if total == 20000 and sound == "ok" and moves else f"wrong {total} {sound} {moves}", flush=True)
