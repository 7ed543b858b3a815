//! Both platforms run the same little programs and report the same exits.

use std::sync::{Arc, mpsc};

use snaprig_card_memory::{PAGE, paging::Access};
use snaprig_card_platform::{
    Exit, Kind, Regs, on_both,
    testing::{CODE, DATA, Machine, WRITE},
};

fn syscall_keeps_every_register(kind: Kind) {
    // syscall; mov %rax, %rdi; syscall
    let machine = Machine::new(kind, &[0x0f, 0x05, 0x48, 0x89, 0xc7, 0x0f, 0x05]);
    let mut regs = Regs {
        rip: CODE,
        rax: 1,
        rbx: 2,
        rdx: 4,
        rsi: 5,
        rdi: 6,
        rbp: 7,
        rsp: 8,
        r8: 9,
        r9: 10,
        r10: 11,
        r12: 13,
        r13: 14,
        r14: 15,
        r15: 16,
        fs_base: 0x7000_0000_1000,
        gs_base: 0x1000,
        ..Regs::default()
    };
    let mut expected = regs;
    let mut cpu = machine.cpu();
    assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Syscall);
    (expected.rip, expected.rflags) = (CODE + 2, 0x202);
    (expected.rcx, expected.r11) = (regs.rcx, regs.r11);
    assert_eq!(regs, expected);
    regs.rax = 77;
    regs.fs_base = 0x5000;
    assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Syscall);
    assert_eq!((regs.rdi, regs.rip, regs.fs_base), (77, CODE + 7, 0x5000));
}

fn faults_say_what_and_where_and_can_be_retried(kind: Kind) {
    // mov %rax, (%rdi); mov (%rdi), %rbx; syscall
    let machine = Machine::new(kind, &[0x48, 0x89, 0x07, 0x48, 0x8b, 0x1f, 0x0f, 0x05]);
    let mut regs = Regs {
        rip: CODE,
        rax: 42,
        rdi: DATA + 8,
        ..Regs::default()
    };
    let fault = |write| Exit::PageFault {
        address: DATA + 8,
        write,
        execute: false,
    };
    let mut cpu = machine.cpu();
    // ptrace cannot tell the first touch of nothing by a write from one by a read.
    assert_eq!(cpu.run(&mut regs).unwrap(), fault(kind == Kind::Kvm));
    assert_eq!(regs.rip, CODE);
    machine.page(DATA, Access::default());
    assert_eq!(cpu.run(&mut regs).unwrap(), fault(true), "read-only");
    machine.tables.protect(DATA, DATA + PAGE, WRITE);
    assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Syscall);
    assert_eq!(regs.rbx, 42);
    // Taken away and flushed: it faults again; at another frame it reads what is there.
    assert_eq!(machine.tables.unmap(DATA, DATA + PAGE).len(), 1);
    machine
        .space
        .flush(Some(&mut *cpu), DATA, DATA + PAGE)
        .unwrap();
    regs.rip = CODE + 3;
    assert_eq!(cpu.run(&mut regs).unwrap(), fault(false));
    let frame = machine.page(DATA, Access::default());
    machine.memory.write(frame + 8, &7u64.to_le_bytes());
    assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Syscall);
    assert_eq!(regs.rbx, 7);
    let mut regs = Regs {
        rip: DATA,
        ..Regs::default()
    };
    let execute = Exit::PageFault {
        address: DATA,
        write: false,
        execute: true,
    };
    assert_eq!(cpu.run(&mut regs).unwrap(), execute);
}

fn exceptions_have_their_vectors(kind: Kind) {
    for (code, vector) in [
        (&[0x0f, 0x0b][..], 6),             // ud2
        (&[0x31, 0xc9, 0xf7, 0xf1][..], 0), // xor %ecx,%ecx; div %ecx
        (&[0xcc][..], 3),                   // int3
        (&[0xf4][..], 13),                  // hlt
        (&[0xe6, 0x40][..], 13),            // out %al, $0x40
        (&[0x0f, 0x20, 0xd8][..], 13),      // mov %cr3, %rax
    ] {
        let machine = Machine::new(kind, code);
        let mut regs = Regs::default();
        match machine.run(&mut regs) {
            Exit::Exception { vector: found, .. } => assert_eq!(found, vector, "{code:x?}"),
            other => panic!("{code:x?}: {other:?}"),
        }
    }
}

fn extended_state_goes_in_and_out(kind: Kind) {
    // vmovups %ymm0, (%rdi); syscall
    let machine = Machine::new(kind, &[0xc5, 0xfc, 0x11, 0x07, 0x0f, 0x05]);
    let frame = machine.page(DATA, WRITE);
    let mut cpu = machine.cpu();
    let mut state = snaprig_card_platform::xstate::initial();
    state[160..176].copy_from_slice(&[0xab; 16]);
    state[512] |= 2;
    cpu.set_xstate(&state).unwrap();
    let mut regs = Regs {
        rip: CODE,
        rdi: DATA,
        ..Regs::default()
    };
    assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Syscall);
    let mut bytes = [0; 32];
    machine.memory.read(frame, &mut bytes);
    assert_eq!(bytes[..16], [0xab; 16]);
    let after = cpu.xstate().unwrap();
    assert_eq!(after.len(), machine.platform.xstate_bytes());
    assert_eq!(after[160..176], [0xab; 16]);
    snaprig_card_platform::xstate::check(&after).unwrap();
    assert!(cpu.set_xstate(&after[..100]).is_err());
}

fn cpus_share_memory_and_can_be_kicked(kind: Kind) {
    // 1: lock incq (%rdi); dec %rcx; jnz 1b; syscall; 2: jmp 2b
    let code = [
        0xf0, 0x48, 0xff, 0x07, 0x48, 0xff, 0xc9, 0x75, 0xf7, 0x0f, 0x05, 0xeb, 0xfe,
    ];
    let machine = Arc::new(Machine::new(kind, &code));
    let frame = machine.page(DATA, WRITE);
    let (send, kickers) = mpsc::channel();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (machine, send) = (machine.clone(), send.clone());
            std::thread::spawn(move || {
                let mut cpu = machine.cpu();
                let mut regs = Regs {
                    rip: CODE,
                    rdi: DATA,
                    rcx: 100_000,
                    ..Regs::default()
                };
                assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Syscall);
                send.send(cpu.kicker()).unwrap();
                assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Kicked);
                assert_eq!(regs.rip, CODE + 11);
            })
        })
        .collect();
    for kicker in kickers.iter().take(3) {
        kicker.kick();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(machine.memory.load(frame), 300_000);
}

fn kicks_are_never_lost(kind: Kind) {
    // 1: jmp 1b
    let machine = Machine::new(kind, &[0xeb, 0xfe]);
    let mut cpu = machine.cpu();
    let kicker = cpu.kicker();
    let mut regs = Regs {
        rip: CODE,
        ..Regs::default()
    };
    for _ in 0..200 {
        let kicker = kicker.clone();
        let thread = std::thread::spawn(move || kicker.kick());
        assert_eq!(cpu.run(&mut regs).unwrap(), Exit::Kicked);
        thread.join().unwrap();
    }
}

on_both! {
    syscall_keeps_every_register
    faults_say_what_and_where_and_can_be_retried
    exceptions_have_their_vectors
    extended_state_goes_in_and_out
    cpus_share_memory_and_can_be_kicked
    kicks_are_never_lost
}
