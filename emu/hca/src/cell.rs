//! Words of device memory: shared with other processes, so every access is an atomic one.
//!
//! A relaxed load or store is a plain one on the machines that matter; order between processes
//! comes from the locks and from the producer counters, which are released and acquired.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

macro_rules! word {
    ($name:ident, $atomic:ty, $plain:ty) => {
        #[doc = concat!("A shared `", stringify!($plain), "`.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name($atomic);

        impl $name {
            /// Its value.
            #[inline]
            pub fn get(&self) -> $plain {
                self.0.load(Ordering::Relaxed)
            }

            /// Replaces it.
            #[inline]
            pub fn set(&self, value: $plain) {
                self.0.store(value, Ordering::Relaxed);
            }

            /// Its value, and all that was written before it was released.
            #[inline]
            pub fn acquire(&self) -> $plain {
                self.0.load(Ordering::Acquire)
            }

            /// Replaces it, after all that was written before.
            #[inline]
            pub fn release(&self, value: $plain) {
                self.0.store(value, Ordering::Release);
            }

            /// Replaces it, and is seen to before anything that is then [`Self::look`]ed at.
            #[inline]
            pub fn announce(&self, value: $plain) {
                self.0.store(value, Ordering::SeqCst);
            }

            /// Its value, after all that was announced before.
            #[inline]
            pub fn look(&self) -> $plain {
                self.0.load(Ordering::SeqCst)
            }

            /// Has its line of the cache brought here, to be written soon.
            #[inline]
            pub fn want(&self) {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a hint about a word that is there; it changes nothing (PREFETCHW).
                unsafe {
                    use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
                    _mm_prefetch::<_MM_HINT_ET0>(self.0.as_ptr().cast());
                }
            }

            /// Replaces it at once; what it was.
            #[inline]
            pub fn swap(&self, value: $plain) -> $plain {
                self.0.swap(value, Ordering::AcqRel)
            }

            /// Sets these bits at once; what it was.
            #[inline]
            pub fn or(&self, bits: $plain) -> $plain {
                self.0.fetch_or(bits, Ordering::AcqRel)
            }

            /// Adds at once; what it was.
            #[inline]
            pub fn add(&self, by: $plain) -> $plain {
                self.0.fetch_add(by, Ordering::AcqRel)
            }

            /// Replaces it if it is `old`.
            #[inline]
            pub fn replace(&self, old: $plain, new: $plain) -> bool {
                self.0
                    .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            }
        }
    };
}

word!(U32, AtomicU32, u32);
word!(U64, AtomicU64, u64);

/// What follows it is in another line of the cache than what is before it: words that different
/// processors write are kept apart, or each write costs the other a miss.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Line;

/// A fence between a store and a later load, as between [`U32::announce`] and [`U32::look`]: who
/// announces that it waits, and then looks again, needs it; so does who provides, and then looks for
/// waiters.
#[inline]
pub fn announce() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
