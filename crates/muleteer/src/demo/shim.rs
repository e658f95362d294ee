//! Sees to it that the demo's agents run in `muleteer-shim`, as installed ones do.
//!
//! `cargo run` builds `muleteer` alone. Where it started the demo, the demo has it build the other one, too: with the
//! same features, so that hardly more than a link is left to do.

use crate::on_demand::own_program;
use crate::output::Output;
use muleteer_process::command::helper;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const NAME: &str = "muleteer-shim";

/// How cargo makes it.
#[derive(Debug, PartialEq, Eq)]
struct Build {
    cargo: OsString,
    dir: PathBuf,
    args: Vec<OsString>,
}

/// Builds it where `cargo run` left it out; says what is missing where nobody can build it.
pub async fn provide(out: Output) {
    let own = own_program();
    if own.with_file_name(NAME).exists() {
        return;
    }
    let by_cargo = std::env::var_os("CARGO").zip(std::env::var_os("CARGO_MANIFEST_DIR"));
    let Some(build) = build(&own, by_cargo) else { return missing(out, &own) };
    out.note(format!("building {NAME}, in which agents run; `cargo run` leaves it out"));
    let mut command = helper(&build.cargo);
    command.args(&build.args).current_dir(&build.dir).stdout(std::process::Stdio::null());
    let status = tokio::process::Command::from(command).kill_on_drop(true).status().await;
    if !status.is_ok_and(|status| status.success()) || !own.with_file_name(NAME).exists() {
        missing(out, &own);
    }
}

fn missing(out: Output, own: &Path) {
    out.note(format!(
        "warning: {NAME} is not beside {}: each agent takes about six times the memory; `cargo xtask install` builds \
         and installs both",
        own.display()
    ));
}

/// `own` lies in cargo's folder of a profile, and cargo started it: `CARGO` and `CARGO_MANIFEST_DIR`.
fn build(own: &Path, by_cargo: Option<(OsString, OsString)>) -> Option<Build> {
    let (cargo, dir) = by_cargo?;
    let folder = own.parent()?;
    let profile: &[&str] = match folder.file_name()?.to_str()? {
        "release" => &["--release"],
        "debug" => &[],
        _ => return None,
    };
    let words = ["build", "--quiet", "-p", "muleteer", "-p", NAME, "--bin", NAME, "--target-dir"];
    let args = words.iter().chain(profile).map(OsString::from).collect::<Vec<_>>();
    let (words, profile) = args.split_at(words.len());
    let args = [words, &[folder.parent()?.into()], profile].concat();
    Some(Build { cargo, dir: dir.into(), args })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shim_is_built_where_cargo_started_us_and_as_it_did() {
        let by_cargo = || Some(("/bin/cargo".into(), "/src/crates/muleteer".into()));
        let made = build(Path::new("/src/target/release/muleteer"), by_cargo()).expect("a build");
        let args: Vec<_> = made.args.iter().map(|arg| arg.to_string_lossy()).collect();
        let wanted =
            "build --quiet -p muleteer -p muleteer-shim --bin muleteer-shim --target-dir /src/target --release";
        assert_eq!((args.join(" ").as_str(), made.cargo), (wanted, "/bin/cargo".into()));
        let made = build(Path::new("/t/debug/muleteer"), by_cargo()).expect("a build");
        assert!(!made.args.contains(&"--release".into()) && made.args.contains(&"/t".into()), "{made:?}");
        assert_eq!(build(Path::new("/src/target/system-test/muleteer"), by_cargo()), None);
        assert_eq!(build(Path::new("/src/target/release/muleteer"), None), None);
    }
}
