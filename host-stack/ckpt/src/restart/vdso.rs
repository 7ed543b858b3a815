//! The vDSO of another kernel (vdso(7)): a program has its functions' addresses anywhere, so the old one stays where it
//! was, and each of its functions begins with a jump to that of the new one.
//!
//! What must stay true: the new one is as far from its data (`[vvar]`) as the kernel has mapped it.

use std::ops::Range;

use object::{Object, ObjectSymbol, SymbolKind};
use snaprig_resources::{
    error::{Error, Result},
    growing::{SPARE_BYTES, moved, offsets},
    opened::damaged,
    state::{Backing, Tree},
};
use snaprig_tracee::{
    memory,
    remote::{STUB_BYTES, call, regs_of},
};

use super::rebuilding::Rebuilding;
/// `movabs rax, ADDRESS; jmp rax`: functions begin with no argument in that register.
const JUMP_BYTES: usize = 12;

impl Rebuilding<'_> {
    /// Moves vDSO and its data to where the process has them.
    pub(crate) fn place_kernels(
        &self,
        kernels: &[(Vec<u8>, Range<u64>)],
        code: &[u8],
        tree: &Tree,
    ) -> Result<()> {
        let wanted = self
            .body
            .areas
            .iter()
            .filter_map(|area| match &area.backing {
                Backing::Kernel(name) => Some((name.clone(), area.start..area.end)),
                _ => None,
            });
        let wanted: Vec<_> = wanted.collect();
        let sizes = |areas: &[(Vec<u8>, Range<u64>)]| -> Vec<(Vec<u8>, u64)> {
            areas
                .iter()
                .map(|(name, part)| (name.clone(), part.end - part.start))
                .collect()
        };
        let spare = self.stub + STUB_BYTES;
        if wanted.is_empty() {
            let unmap = call(libc::SYS_munmap, [spare, SPARE_BYTES]);
            return self.make("a vDSO that it has not had", &[unmap]);
        }
        if sizes(&wanted) != sizes(kernels) || code != tree.vdso {
            return self.redirect_vdso(kernels, code, tree);
        }
        let moves = kernels.iter().zip(offsets(kernels)).zip(&wanted);
        let calls: Vec<_> = moves
            .map(|(((_, part), from), (_, to))| {
                let from = spare + from;
                moved(&(from..from + part.end - part.start), to.start)
            })
            .collect();
        self.make("its vDSO cannot be moved", &calls)
    }

    /// The kernel's vDSO stays where it is now, and that of the checkpoint leads to it.
    fn redirect_vdso(
        &self,
        kernels: &[(Vec<u8>, Range<u64>)],
        code: &[u8],
        tree: &Tree,
    ) -> Result<()> {
        let is_vdso = |name: &[u8]| name == b"[vdso]";
        let mut areas = self.body.areas.iter();
        let old =
            areas.find(|area| matches!(&area.backing, Backing::Kernel(name) if is_vdso(name)));
        let Some(old) = old else { return Ok(()) };
        let now = kernels.iter().zip(offsets(kernels));
        let mut now = now.filter(|((name, _), _)| is_vdso(name));
        let (_, offset) = now
            .next()
            .ok_or_else(|| damaged("no vDSO on this kernel"))?;
        let (pid, bytes) = (self.process.pid, old.end - old.start);
        if tree.vdso.len() as u64 != bytes {
            return Err(damaged("a vDSO of another size"));
        }
        for thread in &self.body.threads {
            let at = regs_of(&thread.regs).map_or(0, |regs| regs.rip);
            if (old.start..old.end).contains(&at) {
                let what = format!(
                    "thread {} was in the vDSO of another kernel: an earlier checkpoint may do",
                    thread.tid
                );
                return Err(Error::Missing { what });
            }
        }
        let redirected = redirect(&tree.vdso, code, self.stub + STUB_BYTES + offset)?;
        let to_fill = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let arguments = [old.start, bytes, to_fill, flags as u64, u64::MAX, 0];
        let what = "the vDSO of another kernel";
        self.make(what, &[call(libc::SYS_mmap, arguments)])?;
        memory::write(pid, old.start, &redirected)?;
        let code = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        self.make(what, &[call(libc::SYS_mprotect, [old.start, bytes, code])])
    }
}

/// The old vDSO with jumps into the new one, which is mapped at `at`.
fn redirect(old: &[u8], new: &[u8], at: u64) -> Result<Vec<u8>> {
    let functions = functions(old)?;
    let known = self::functions(new)?;
    let mut code = old.to_vec();
    for (index, (name, start)) in functions.iter().enumerate() {
        let target = known.iter().find(|(known, _)| known == name);
        let (_, target) = target.ok_or_else(|| Error::Missing {
            what: format!("{name} in this kernel's vDSO"),
        })?;
        let others = functions.iter().map(|(_, other)| *other);
        let next = others.filter(|other| other > start).min();
        let room = next.map_or(code.len(), |next| next as usize) - *start as usize;
        let place = code.get_mut(*start as usize..).unwrap_or_default();
        if room < JUMP_BYTES || place.len() < JUMP_BYTES {
            let what = "a vDSO with a function that is too short";
            return Err(damaged(what));
        }
        // Two names of one function: it has its jump already, which is the same.
        if functions[..index].iter().any(|(_, other)| other == start) {
            continue;
        }
        place[..2].copy_from_slice(&[0x48, 0xb8]);
        place[2..10].copy_from_slice(&(at + target).to_le_bytes());
        place[10..JUMP_BYTES].copy_from_slice(&[0xff, 0xe0]);
    }
    Ok(code)
}

/// Its functions: names, and where they begin in it.
fn functions(vdso: &[u8]) -> Result<Vec<(String, u64)>> {
    let file = object::File::parse(vdso).map_err(|_| damaged("a vDSO that is none"))?;
    let symbols = file.dynamic_symbols();
    let functions = symbols
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())));
    let functions: Vec<_> = functions.collect();
    let is_within = |(_, start): &(String, u64)| *start < vdso.len() as u64;
    match functions.iter().all(is_within) {
        true => Ok(functions),
        false => Err(damaged("a vDSO with functions elsewhere")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own() -> Vec<u8> {
        let maps = procfs::process::Process::myself().unwrap().maps().unwrap();
        let is_vdso =
            |map: &&procfs::process::MemoryMap| map.pathname == procfs::process::MMapPath::Vdso;
        let (start, end) = maps.iter().find(is_vdso).unwrap().address;
        let mut bytes = vec![0; (end - start) as usize];
        memory::read(std::process::id() as i32, start, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_function_has_its_jump() {
        let vdso = own();
        let code = redirect(&vdso, &vdso, 1 << 40).unwrap();
        let functions = functions(&vdso).unwrap();
        assert!(
            functions
                .iter()
                .any(|(name, _)| name == "__vdso_clock_gettime")
        );
        for (name, start) in functions {
            let place = &code[start as usize..];
            let target = u64::from_le_bytes(place[2..10].try_into().unwrap());
            assert_eq!((target, place[10]), ((1 << 40) + start, 0xff), "{name}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused(at in 0..8192usize, with: u64) {
            let vdso = own();
            let mut other = vdso.clone();
            let end = (at + 8).min(other.len());
            other[at.min(end)..end].fill(with as u8);
            // It may be one still.
            let _ = redirect(&other, &vdso, with);
        }
    }
}
