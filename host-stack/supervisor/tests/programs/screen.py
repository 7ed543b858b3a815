"""Shows its size, and what has been typed; `q` ends it."""
import curses


def main(screen):
    typed = ""
    while True:
        screen.erase()
        screen.addstr(0, 0, "%d x %d" % screen.getmaxyx())
        screen.addstr(2, 0, typed)
        screen.refresh()
        key = screen.getch()
        if key == ord("q"):
            return typed
        if key == curses.KEY_RESIZE:
            screen.clear()
        elif key >= 0:
            typed += chr(key)
        if len(typed) == 5:
            screen.clear()


print("right:", curses.wrapper(main), flush=True)
