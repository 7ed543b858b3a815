//! The card kernel's checkpoint service, `/dev/card/checkpoint`: the part that BLCR's kernel
//! module plays in the paper (section 4.1, Capture; section 4.3, Restore).
//!
//! - [`CAPTURE`]: the caller's process, with all its descendants, is stopped and streamed, front to
//!   back, once, to a file descriptor of the caller (a socket to the Snapify-IO daemon, a pipe, a
//!   file). Returns 0 in the original process, [`RESTARTED`] in a restored one. EBUSY while another
//!   thread of them captures or restores; EDEADLK if only they would read what is written; EFBIG,
//!   EOVERFLOW for what could not be restored. When it has returned, all run on; with [`HOLD`], after
//!   a capture that went well, only the calling thread does.
//! - [`RELEASE`]: what the calling thread holds runs on. Takes no argument.
//! - [`MARK`]: the files that the caller's process maps shared are about to be saved by the caller
//!   itself, while its other threads run on. What is written to them from now on belongs to the
//!   image of the next [`CAPTURE`]. Takes no argument.
//! - [`WROTE`]: somebody else has written to memory of the caller's process.
//! - [`PRELOAD`]: reads such a stream as [`RESTORE`] does, but starts nothing: its pages are kept until the
//!   descriptor of the device is closed, for the image that builds on it, which either is given to. Several make a
//!   chain. A process can so be brought to a card while it runs elsewhere.
//! - [`RESTORE`]: reads such a stream once, front to back, and starts the processes, the first as a
//!   child of the caller. Returns its pid. EBADMSG for what is no whole image, is of no moment ([`LIVE`]), or builds on
//!   what was not preloaded; EEXIST if an id is in
//!   use; ENOMEM, EAGAIN if the card has too little memory or too many threads; EADDRINUSE if the name
//!   of a socket is in use. Whatever the error, nothing of the image is left.
//!
//! What is captured: memory, shared memory among them; threads, and the calls in which they wait;
//! signals, timers, limits; descriptors. Files that are open are in the image, and come back under
//! their names in place of what is there; files that are only mapped (programs, libraries) and those
//! that [`MARK`] names have to be on the other card. Pipes and connections whose other end is not
//! captured come back at their end, or reset; but standard output and error that are such a pipe, or
//! the console, go where [`Restore`] says.
//!
//! Each structure is passed by address, as is usual with `ioctl(2)`. All fields little-endian.

/// `ioctl` number of [`Capture`].
pub const CAPTURE: u32 = iow(1, size_of::<Capture>());
/// `ioctl` number of [`Restore`].
pub const RESTORE: u32 = iow(2, size_of::<Restore>());
/// `ioctl` number of the mark: `_IO('k', 3)`.
pub const MARK: u32 = (b'k' as u32) << 8 | 3;
/// `ioctl` number of the release: `_IO('k', 4)`.
pub const RELEASE: u32 = (b'k' as u32) << 8 | 4;
/// `ioctl` number of [`Preload`].
pub const PRELOAD: u32 = iow(5, size_of::<Preload>());
/// `ioctl` number of [`Wrote`].
pub const WROTE: u32 = iow(6, size_of::<Wrote>());
/// What [`CAPTURE`] returns in a restored process.
pub const RESTARTED: i64 = 1;
/// Flag of [`CAPTURE`]: a whole image, the first of a chain. From now on the kernel remembers what
/// the process changes. EOPNOTSUPP where the host cannot tell.
pub const TRACK: u32 = 1;
/// Flag of [`CAPTURE`]: the next image of the chain, with what has changed since the last. ENODATA
/// if there is none: a capture failed since, or the process has executed a program.
pub const INCREMENT: u32 = 2;
/// Flag of [`CAPTURE`], with any other: who goes on elsewhere must not go on here. After a capture
/// that returned 0, the processes but for the calling thread stay stopped, until it asks for
/// [`RELEASE`] or ends. They end with it; and if it ends its process (exit_group(2)), before that:
/// nothing of them is left when its parent hears of it. A stopped thread may have any lock, the
/// heap's too.
pub const HOLD: u32 = 4;
/// Flag of [`CAPTURE`], with [`TRACK`] or [`INCREMENT`]: the processes are stopped only until it is known which pages
/// there are, and run on while those are written. The image is of no moment, and not restored alone: what has changed
/// meanwhile is in the next image of the chain.
pub const LIVE: u32 = 8;
/// Flag of [`CAPTURE`]: files that the processes map shared are in the image too, under their names, as those are that
/// are open; none is marked. For an image of a chain what others write there, by whichever way, counts if it was told with
/// [`WROTE`] before the capture.
pub const MAPPED: u32 = 16;
/// Flag of [`CAPTURE`]: of files that the processes map shared nothing is in the image; what they are when it is written is
/// on the other card before the image is restored there.
pub const APART: u32 = 32;
/// Path of the device.
pub const PATH: &str = "/dev/card/checkpoint";

/// Argument of [`CAPTURE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Capture {
    /// Descriptor to write the image to.
    pub fd: i32,
    /// [`TRACK`] or [`INCREMENT`], neither: a whole image, on its own; and [`HOLD`] or [`LIVE`], and [`MAPPED`]; or a
    /// whole image with [`APART`].
    pub flags: u32,
}

/// Argument of [`PRELOAD`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Preload {
    /// Descriptor to read the image from.
    pub fd: i32,
}

/// Argument of [`WROTE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wrote {
    /// Address in the caller's process.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Argument of [`RESTORE`]. In the restored process, the card's console, and standard output and
/// error whose reader is not in the image, are the caller's `stdio`; all else is as the image says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Restore {
    /// Descriptor to read the image from.
    pub fd: i32,
    /// The caller's descriptors for 0, 1 and 2.
    pub stdio: [i32; 3],
}

/// `_IOW('k', number, size)` of `asm-generic/ioctl.h`.
const fn iow(number: u32, size: usize) -> u32 {
    1 << 30 | (size as u32) << 16 | (b'k' as u32) << 8 | number
}
