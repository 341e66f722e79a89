//! Which mutant runs, by a variable of the environment; or, while none does, which of them are reached.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const UNREAD: u32 = u32::MAX;
const RECORDING: u32 = UNREAD - 1;
const MOST: usize = 1 << 16;

static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);
static REACHED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
static RECORD: OnceLock<Option<File>> = OnceLock::new();

pub fn on(mutant: u32) -> bool {
    match CHOSEN.load(Relaxed) {
        UNREAD => {
            CHOSEN.store(chosen(), Relaxed);
            on(mutant)
        }
        RECORDING => {
            reached(mutant);
            false
        }
        chosen => chosen == mutant,
    }
}

fn chosen() -> u32 {
    if record().is_some() {
        return RECORDING;
    }
    std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Written at once: whatever ends the process, nothing is lost.
fn reached(mutant: u32) {
    if !REACHED[mutant as usize].swap(true, Relaxed) {
        let mut file = record().expect("it records");
        writeln!(file, "{mutant}").expect("it is written");
    }
}

fn record() -> Option<&'static File> {
    let open = || {
        let path = std::env::var_os("MUTANTS_REACHED")?;
        Some(OpenOptions::new().create(true).append(true).open(path).expect("a file"))
    };
    RECORD.get_or_init(open).as_ref()
}
