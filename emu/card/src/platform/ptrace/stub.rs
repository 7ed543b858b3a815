//! The page of code that every traced process has, above the addresses that programs may use, and
//! the page of words through which its leader is told what to do.
//!
//! ```text
//! STUB + 0      syscall; int3                    where the tracer runs calls of its own
//! STUB + PARK   pause; jmp PARK                  where a new task waits to be seized
//! STUB + LEADER the leader's loop
//! STUB + 4096   COMMAND (u32), TID (u32)         shared with the VMM
//! ```

use super::super::USER_END;

/// Address of the page.
pub const STUB: u64 = USER_END + (1 << 30);
/// Address of the words shared with the VMM.
pub const WORDS: u64 = STUB + 4096;
/// Offset of the parking loop.
pub const PARK: u64 = 0x10;
/// Offset of the leader's loop.
pub const LEADER: u64 = 0x40;

/// The page's code. The leader: wait until COMMAND is not 0; clone a task into PARK; put its id
/// into TID; set COMMAND to 0; wake the VMM; again. It uses no stack.
pub fn code() -> Vec<u8> {
    let mut code = vec![0xcc; 4096];
    code[..3].copy_from_slice(&[0x0f, 0x05, 0xcc]);
    code[PARK as usize..PARK as usize + 4].copy_from_slice(&[0xf3, 0x90, 0xeb, 0xfc]);
    let leader = leader();
    code[LEADER as usize..LEADER as usize + leader.len()].copy_from_slice(&leader);
    code
}

const FUTEX_WAIT: u32 = libc::FUTEX_WAIT as u32;
const FUTEX_WAKE: u32 = libc::FUTEX_WAKE as u32;
const CLONE_FLAGS: u32 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u32;

/// Assembles the leader's loop: `rbx` holds the address of the words.
fn leader() -> Vec<u8> {
    let mut code = Vec::new();
    // mov $WORDS, %rbx
    code.extend([0x48, 0xbb]);
    code.extend(WORDS.to_le_bytes());
    let again = code.len();
    // cmpl $0, (%rbx); jne work
    code.extend([0x83, 0x3b, 0x00, 0x75, 0x00]);
    let branch = code.len();
    // futex(rbx, FUTEX_WAIT, 0, NULL)
    code.extend([0x48, 0x89, 0xdf]); // mov %rbx, %rdi
    code.extend(mov32(0xbe, FUTEX_WAIT)); // mov $.., %esi
    code.extend([0x31, 0xd2, 0x4d, 0x31, 0xd2]); // xor %edx, %edx; xor %r10, %r10
    code.extend(syscall(libc::SYS_futex));
    code.extend(jump_back(code.len(), again));
    code[branch - 1] = (code.len() - branch) as u8;
    // clone(flags, 0, 0, 0, 0)
    code.extend(mov32(0xbf, CLONE_FLAGS)); // mov $.., %edi
    code.extend([0x31, 0xf6, 0x31, 0xd2, 0x4d, 0x31, 0xd2, 0x4d, 0x31, 0xc0]);
    code.extend(syscall(libc::SYS_clone));
    // test %eax, %eax; jz PARK
    code.extend([0x85, 0xc0, 0x74]);
    let park = PARK as i64 - (LEADER as i64 + code.len() as i64 + 1);
    code.push(park as i8 as u8);
    // mov %eax, 4(%rbx); movl $0, (%rbx)
    code.extend([0x89, 0x43, 0x04, 0xc7, 0x03, 0, 0, 0, 0]);
    // futex(rbx, FUTEX_WAKE, 1)
    code.extend([0x48, 0x89, 0xdf]);
    code.extend(mov32(0xbe, FUTEX_WAKE));
    code.extend(mov32(0xba, 1)); // mov $1, %edx
    code.extend(syscall(libc::SYS_futex));
    code.extend(jump_back(code.len(), again));
    code
}

fn mov32(opcode: u8, value: u32) -> Vec<u8> {
    [&[opcode][..], &value.to_le_bytes()].concat()
}

/// mov $number, %eax; syscall
fn syscall(number: i64) -> Vec<u8> {
    [mov32(0xb8, number as u32), vec![0x0f, 0x05]].concat()
}

/// A short jump at `from` to `to`.
fn jump_back(from: usize, to: usize) -> [u8; 2] {
    [0xeb, (to as i64 - (from as i64 + 2)) as i8 as u8]
}
