/* Snapify-IO: files of another node. Bytes go by RDMA, through the daemons of both nodes, and take next to nothing of a card's
 * memory.
 *
 *     int fd = snapifyio_open(0, "/home/me/shared/results", SNAPIFYIO_WRITE);
 *     write(fd, results, sizeof(results));
 *     if (snapifyio_finish(fd) < 0)
 *         perror("results");
 *
 * Node 0 is the host. It serves the directories that it was started with (`snaprig run --share DIR`, `snaprig card run --share
 * DIR`), and no others. Cards, from node 1 on, serve the host all of their files, and other cards those in /tmp.
 *
 * Compile and link with what `snaprig include --snapify-io` prints: -lsnapify. */
#ifndef SNAPIFYIO_H
#define SNAPIFYIO_H

#ifdef __cplusplus
extern "C" {
#endif

/* Modes, one of them. */
#define SNAPIFYIO_READ 0
#define SNAPIFYIO_WRITE 1

/* Opens the file at an absolute path of a node, free of symbolic links, in one direction. The descriptor is read(2) or written
 * (write(2)) from the first byte to the last one, by whoever has it, also another process or a library. As many files are open on
 * a card at once as its daemon has buffers for, which are four; a call waits for its turn.
 *
 * A file that is written is not at its path, and an earlier one still is, until snapifyio_finish. A descriptor that is closed
 * before that by all who have it, as by the end of its process, leaves nothing.
 *
 * read(2) is 0 at the end of the file, and ECONNRESET if not all of it could be brought, whatever happened. write(2) is
 * EPIPE, with a SIGPIPE unless that is ignored, once the file cannot be written; snapifyio_finish says why.
 *
 * Returns -1 and sets errno:
 *     EACCES        the node does not share the directory, or may not use the file itself
 *     ENOENT        there is no such file, or no such directory
 *     EINVAL        the path is not absolute, or has ".." in it, or is not that of a file; or there is no such mode
 *     ELOOP         the path has a symbolic link in it (on the host)
 *     ENXIO         there is no such node
 *     ECONNREFUSED  no Snapify-IO daemon runs there
 *     ENODEV        this program is not on a card, and has no rig ($SNAPRIG_RIG)
 *     and those of open(2), socket(2) and connect(2) */
int snapifyio_open(int node, const char *path, int mode);

/* Ends a file that is written: waits until all of it is on the node's disk and has its name there, in place of an earlier
 * file. Closes the descriptor in any case; other descriptors of the same file must not be written to any more.
 *
 * Returns 0, or -1 and sets errno; then nothing has changed at the path:
 *     ENOSPC, EDQUOT  the disk is full
 *     EFBIG           it would be larger than the host's daemon may write
 *     EIO             the disk failed
 *     ECONNRESET      the host, or the card's daemon, is gone
 *     EBADF           it is no open descriptor
 *     EBADMSG         it is not one of a file that is written */
int snapifyio_finish(int fd);

#ifdef __cplusplus
}
#endif

#endif
