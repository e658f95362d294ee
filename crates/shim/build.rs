//! Links the shim. Each agent has one, so the cost of its start and its memory matter.
//!
//! It is linked at a fixed address, because relocations are most of the private memory of such a
//! small program. If the C library has an archive, it is linked statically: the loader takes a
//! quarter of the time of an exec, and its tables take a third of the memory.
//! `target-feature=+crt-static` would apply to all programs of the build; this script applies to
//! one.
//!
//! It also embeds a hash of the sources, so that a `muleteer` and a `muleteer-shim` that were built
//! at different times can detect it.

#![allow(clippy::disallowed_methods)] // At build time there is no `process` to start them.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=MULETEER_SHIM_SOURCES={:016x}", sources());
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if !(is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu")) {
        return;
    }
    println!("cargo::rustc-link-arg-bin=muleteer-shim=-no-pie");
    // About the compiler of another machine nothing is known here.
    let native = std::env::var("HOST").is_ok() && std::env::var("HOST") == std::env::var("TARGET");
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    if native && archives(&out.join("static")).is_some() {
        println!("cargo::rustc-link-arg-bin=muleteer-shim=-static");
        println!("cargo::rustc-link-arg-bin=muleteer-shim=-L{}", out.join("static").display());
    }
}

/// Returns a hash (FNV-1a) of all sources of the shim that are here. For a crate that is packaged
/// alone, these are its own sources.
fn sources() -> u64 {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["src", "../protocol/src", "../process/src"].map(PathBuf::from).to_vec();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        println!("cargo::rerun-if-changed={}", folder.display());
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let texts = files.iter().filter_map(|path| std::fs::read(path).ok());
    texts.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Replaces the shared libraries that rustc names (it does not know that this one program is
/// static) by linker scripts that name the archives. `None` if the C library's archive is not
/// installed, or if a test program cannot be linked that way.
fn archives(dir: &Path) -> Option<()> {
    const LIBRARIES: [(&str, &str); 7] = [
        ("gcc_s", "GROUP(-lgcc_eh -l:libc.a)"),
        ("c", "GROUP(-l:libc.a -lgcc_eh -lgcc)"),
        ("m", "INPUT(-l:libm.a)"),
        ("dl", "INPUT(-l:libdl.a)"),
        ("rt", "INPUT(-l:librt.a)"),
        ("pthread", "INPUT(-l:libpthread.a)"),
        ("util", "INPUT(-l:libutil.a)"),
    ];
    std::fs::create_dir_all(dir).ok()?;
    for (name, script) in LIBRARIES {
        std::fs::write(dir.join(format!("lib{name}.so")), script).ok()?;
    }
    let (source, program) = (dir.join("probe.c"), dir.join("probe"));
    std::fs::write(&source, "int main(void) { return 0; }\n").ok()?;
    let mut compiler = Command::new("cc");
    compiler.args(["-no-pie", "-static"]).arg("-L").arg(dir).arg(&source).arg("-Wl,-Bdynamic");
    compiler.args(LIBRARIES.map(|(name, _)| format!("-l{name}"))).arg("-o").arg(&program);
    // Its errors do not matter, because there is a fallback.
    let linked = compiler.output().ok()?.status.success();
    (linked && Command::new(&program).status().ok()?.success()).then_some(())
}
