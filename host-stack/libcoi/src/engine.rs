//! `COIEngine_source.h`: the cards of the rig, which are Knights Corners.

use std::{ffi::c_char, sync::Once};

use snaprig_scif::client::rig_from_environment;
use snaprig_wire::pci;

use snaprig_coi::{CoiError, Engine};

use crate::{
    arguments::give,
    handles::Table,
    perf::COIPerfGetCycleFrequency,
    result::{Done, Failure, code, require},
    trace::{self, api},
    types::{ENGINE_INFO_SCIF_BYTES, EngineInfo, HARDWARE_THREADS_MAX, Handle, device},
};

/// COI_ENG_ECC_DISABLED.
const ECC_DISABLED: u32 = 0;
/// COI_INTERCONN_PCIE.
const PCIE: u32 = 1;
/// Knights Corner, as cpuid has it.
const CPU: (&[u8; 13], u8, u8, u8) = (b"GenuineIntel\0", 11, 1, 3);
/// As sysfs has them of a Knights Corner of stepping B1.
const BOARD: (u16, u16) = (0x11, 0x1);

static ENGINES: Table<Engine> = Table::new();

/// The engine that it is a handle of.
pub fn engine(handle: Handle) -> Done<Engine> {
    ENGINES.get(handle)
}

/// The handle of an engine: always the same.
pub fn handle(engine: Engine) -> Handle {
    match ENGINES.find(|known| *known == engine) {
        Some((handle, _)) => handle,
        None => ENGINES.insert(engine),
    }
}

/// Says once why there is no COI here.
fn complain(why: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        trace::tell(&format!(
            "no rig: {why}; `snaprig run -- PROGRAM` starts one"
        ));
    });
}

/// How many cards of a kind there are.
fn count(kind: u32) -> Done<u32> {
    match kind {
        device::MIC | device::KNC => {}
        device::KNL => return Ok(0),
        _ => return Err(code::DOES_NOT_EXIST.into()),
    }
    let Some(rig) = rig_from_environment() else {
        complain("SNAPRIG_RIG is not set");
        return Ok(0);
    };
    let count = Engine::count(&rig);
    if let Err(error @ CoiError::Scif(_)) = &count {
        complain(&format!("{}: {error}", rig.display()));
    }
    let count = count?;
    u32::try_from(count).map_err(|_| code::ERROR.into())
}

/// A card by its number among those of its kind.
pub fn numbered(kind: u32, index: u32) -> Done<Engine> {
    require(index < count(kind)?, code::OUT_OF_RANGE)?;
    let rig = rig_from_environment().ok_or(code::OUT_OF_RANGE)?;
    let index = u16::try_from(index).map_err(|_| code::OUT_OF_RANGE)?;
    // One that is not attached is offline, too.
    Ok(Engine::get(&rig, index).map_err(|_| code::NOT_INITIALIZED)?)
}

api! {
    fn COIEngineGetCount(kind: u32, count_out: *mut u32) {
        require(!count_out.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(count_out, count(kind)?) };
        Ok(())
    }

    fn COIEngineGetHandle(kind: u32, index: u32, engine_out: *mut Handle) {
        require(!engine_out.is_null(), code::INVALID_POINTER)?;
        require(kind != device::KNF, code::OUT_OF_RANGE)?;
        let found = numbered(kind, index)?;
        require(found.is_online()?, code::NOT_INITIALIZED)?;
        // SAFETY: COI's header has the program pass null or a place for the answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe { give(engine_out, handle(found)) };
        Ok(())
    }

    fn COIEngineGetInfo(engine: Handle, bytes: u32, info_out: *mut EngineInfo) {
        let card = self::engine(engine)?;
        require(!info_out.is_null(), code::INVALID_POINTER)?;
        let whole = size_of::<EngineInfo>() as u32;
        require(bytes == whole || bytes == ENGINE_INFO_SCIF_BYTES, code::SIZE_MISMATCH)?;
        let mut info = info(&card)?;
        if bytes == ENGINE_INFO_SCIF_BYTES {
            // Padding, there.
            info.interconnection = 0;
        }
        let from = (&raw const *info).cast::<u8>();
        // SAFETY: the pointer is not null, and COI's header has the program pass a place of `bytes`
        // bytes; that is one of two sizes, neither of which is more than the whole, of which `from`
        // is the beginning.
        unsafe { from.copy_to(info_out.cast(), bytes as usize) };
        Ok(())
    }

    fn COIEngineGetHostname(engine: Handle, name_out: *mut c_char) {
        let card = self::engine(engine)?;
        require(!name_out.is_null(), code::INVALID_POINTER)?;
        // As the card's kernel says it (uname(2)).
        let name = format!("mic{}\0", card.node().saturating_sub(1));
        // SAFETY: the pointer is not null, and COI's header has the program pass a place of 4096
        // bytes, which no host's name, with its null byte, is longer than.
        unsafe { name.as_ptr().copy_to(name_out.cast(), name.len()) };
        Ok(())
    }

    fn COIEngineGetIndex(kind_out: *mut u32, index_out: *mut u32) {
        require(!kind_out.is_null() && !index_out.is_null(), code::INVALID_POINTER)?;
        // SAFETY: COI's header has the program pass null or a place for each answer, which `give`
        // writes and does not read; it does nothing for null.
        unsafe {
            give(kind_out, device::SOURCE);
            give(index_out, 0);
        }
        Ok(())
    }
}

/// Cores of a card, and the hardware threads of each.
pub fn cores(engine: &Engine) -> Done<(u32, u32)> {
    let info = engine.info()?;
    let threads = info.threads.max(info.cores);
    match threads.checked_div(info.cores) {
        Some(threads) => Ok((info.cores, threads)),
        None => Err(Failure::new(
            code::ERROR,
            "the card says that it has no cores",
        )),
    }
}

fn info(engine: &Engine) -> Done<Box<EngineInfo>> {
    let card = engine.info()?;
    let mut driver_version = [0; 255];
    let version = env!("CARGO_PKG_VERSION").chars();
    for (place, letter) in driver_version.iter_mut().zip(version) {
        *place = letter.into();
    }
    let mut load = [0; HARDWARE_THREADS_MAX];
    for (place, percent) in load.iter_mut().zip(card.load) {
        *place = percent;
    }
    Ok(Box::new(EngineInfo {
        driver_version,
        isa: device::KNC,
        cores: card.cores,
        flags: ECC_DISABLED,
        threads: card.threads,
        // A card runs on the host's processors.
        frequency_mhz: (COIPerfGetCycleFrequency() / 1_000_000) as u32,
        load,
        memory_bytes: card.memory_bytes,
        free_bytes: card.free_bytes,
        swap_bytes: 0,
        swap_free_bytes: 0,
        vendor: pci::VENDOR_ID,
        device: pci::DEVICE_ID,
        subsystem: pci::DEVICE_ID,
        board_stepping: BOARD.0,
        board_sku: BOARD.1,
        interconnection: PCIE,
        cpu_vendor: *CPU.0,
        cpu_family: CPU.1,
        cpu_model: CPU.2,
        cpu_stepping: CPU.3,
    }))
}
