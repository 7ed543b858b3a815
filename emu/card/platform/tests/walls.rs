//! What a program cannot do to get out: reach the platform's pages, or make a system call of the host's by another door.

use std::sync::atomic::{AtomicBool, Ordering};

use snaprig_card_memory::{PAGE, USER_END, paging::Access};
use snaprig_card_platform::{
    Exit, Kind, Regs, on_both,
    testing::{CODE, DATA, Machine, WRITE},
};

const EXECUTE: Access = Access {
    write: false,
    execute: true,
    none: false,
    copied: false,
};

fn general_protection(exit: Exit) -> bool {
    matches!(exit, Exit::Exception { vector: 13, .. })
}

/// System calls by the doors of 32-bit code, and by the vsyscall page, which Linux emulates.
fn there_is_one_door(kind: Kind) {
    let machine = Machine::new(kind, &[0xcd, 0x80]); // int $0x80
    let mut regs = Regs {
        rax: 20,
        ..Regs::default()
    };
    // Paravirtual KVM calls it invalid.
    let invalid = |exit| matches!(exit, Exit::Exception { vector: 6, .. });
    let exit = machine.run(&mut regs);
    assert!(invalid(exit) || general_protection(exit), "{exit:?}");
    assert_eq!(regs.rip, CODE);

    let machine = Machine::new(kind, &[0x0f, 0x34]); // sysenter: invalid on AMD
    let exit = machine.run(&mut regs);
    assert!(invalid(exit) || general_protection(exit), "{exit:?}");

    // gettimeofday, time, getcpu: call *%rbx, with a good stack.
    let machine = Machine::new(kind, &[0xff, 0xd3, 0x0f, 0x05]);
    machine.page(DATA, WRITE);
    for rbx in [
        0xffff_ffff_ff60_0000,
        0xffff_ffff_ff60_0400,
        0xffff_ffff_ff60_0800,
    ] {
        let mut regs = Regs {
            rbx,
            rdi: DATA,
            rsp: DATA + 0x800,
            ..Regs::default()
        };
        let exit = machine.run(&mut regs);
        let nothing = matches!(exit, Exit::PageFault { execute: true, .. });
        assert!(nothing || general_protection(exit), "{exit:?}");
    }
}

/// A far return to the host's 32-bit code segment, a fault there for the platform to resolve, and code of
/// the guest's where the stub's address would be with its upper half cut off.
fn thirty_two_bit_code_gets_nowhere(kind: Kind) {
    const STUB_CUT: u64 = 0x4000_0000;
    const STACK: u64 = 0x62_0000;
    let mut code = vec![
        0x8a, 0x04, 0x25, 0, 0, 0, 0x40, // mov 0x40000000, %al
        0x88, 0x04, 0x25, 0, 0, 0x60, 0, // mov %al, 0x600000
        0x6a, 0x23, 0x68, 0x20, 0, 0x40, 0, 0x48, 0xcb, // push $0x23; push $0x400020; lretq
    ];
    code.resize(0x20, 0xcc);
    code.extend([0xa1, 0, 0, 0x61, 0, 0xcc]); // mov 0x610000, %eax; int3
    let machine = Machine::new(kind, &code);
    let low = machine.page(STUB_CUT, EXECUTE);
    // mov $20 (getpid), %eax; int $0x80; mov %eax, 0x600004; int3
    let call = [0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xa3, 4, 0, 0x60, 0, 0xcc];
    machine.memory.write(low, &call);
    let result = machine.page(DATA, WRITE);
    machine.page(0x61_0000, Access::default());
    machine.page(STACK, WRITE);
    let mut regs = Regs {
        rip: CODE,
        rsp: STACK + 0x800,
        ..Regs::default()
    };
    let mut cpu = machine.cpu();
    let (kicker, memory, over) = (cpu.kicker(), machine.memory.clone(), AtomicBool::new(false));
    let exit = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                if memory.half_word(result + 4).load(Ordering::SeqCst) != 0 {
                    kicker.kick();
                }
                std::thread::yield_now();
            }
        });
        let exit = cpu.run(&mut regs).unwrap();
        over.store(true, Ordering::SeqCst);
        exit
    });
    let host_said = machine.memory.half_word(result + 4).load(Ordering::SeqCst);
    assert_eq!(host_said, 0, "the host answered getpid");
    assert!(matches!(exit, Exit::Exception { .. }), "{exit:?}");
}

fn nothing_above_a_programs_addresses_can_be_written(kind: Kind) {
    // mov %rax, (%rdi); syscall
    let machine = Machine::new(kind, &[0x48, 0x89, 0x07, 0x0f, 0x05]);
    let stub = USER_END + (1 << 30);
    let pages = (0..32).flat_map(|page| [USER_END + page * PAGE, stub + page * PAGE]);
    for address in pages.chain([0x7fff_ffff_e000, 0xffff_ffff_ff60_0000]) {
        let mut regs = Regs {
            rdi: address,
            ..Regs::default()
        };
        let exit = machine.run(&mut regs);
        let fault = matches!(exit, Exit::PageFault { .. });
        assert!(fault || general_protection(exit), "{address:#x}: {exit:?}");
    }
}

on_both! {
    there_is_one_door
    thirty_two_bit_code_gets_nowhere
    nothing_above_a_programs_addresses_can_be_written
}
