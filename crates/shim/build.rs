//! How the shim is linked: there is one for each agent, so what it costs to start and to keep
//! counts.
//!
//! At a fixed place, since relocations are most of the private memory of a program this small. And
//! statically, where the C library can be had so: the loader's work is a quarter of what its exec
//! takes, and its tables a third of the memory. `target-feature=+crt-static` would say it for
//! everything that is built; this says it for one program.
//!
//! It also names what is built, by a hash of the sources: a `muleteer` and a `muleteer-shim` that
//! were built at different times can tell.

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
    // Of another machine's compiler nothing is known here.
    let native = std::env::var("HOST").is_ok() && std::env::var("HOST") == std::env::var("TARGET");
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    if native && archives(&out.join("static")).is_some() {
        println!("cargo::rustc-link-arg-bin=muleteer-shim=-static");
        println!("cargo::rustc-link-arg-bin=muleteer-shim=-L{}", out.join("static").display());
    }
}

/// A hash (FNV-1a) of all that the shim is made of here. Of a crate that is packed alone it is that
/// crate.
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

/// Puts in place of the shared libraries that rustc names (it was not told that this one program is
/// static) scripts of the linker's that name the archives instead. `None` where the C library's
/// archive is not installed, or a program cannot be linked that way.
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
    // What it complains about is nobody's business: there is another way.
    let linked = compiler.output().ok()?.status.success();
    (linked && Command::new(&program).status().ok()?.success()).then_some(())
}
