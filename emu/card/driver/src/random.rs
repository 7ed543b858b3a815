//! Random numbers, which are the host's.

/// Fills `bytes` with the host's random numbers.
pub fn fill(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: getrandom(2) writes at most as many bytes as it is told, which is the length of `rest`, borrowed mutably.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        done += got.max(0) as usize;
    }
}
