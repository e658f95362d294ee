//! Starts many processes at once, directly or through a daemon, and prints when it began, in
//! nanoseconds of the monotonic clock (`cargo xtask bench`).
//!
//! - `spawner bare COUNT PROGRAM ARGS…`
//! - `spawner durable WRITES FILE PROGRAM ARGS…`: first writes to FILE and waits for the disk, as
//!   often as it says.
//! - `spawner respawn PROGRAM FILE ARGS…`: kills the program once it has written to FILE, starts it
//!   again, and prints when it killed it.
//! - `spawner daemon SOCKET KEY-FILE PROJECT COUNT PROGRAM ARGS…`
//! - `spawner confined …`, `spawner unconfined …`: the same for agents that also get HOME, in the
//!   sandbox or not.

// The benchmark measures the cost of starting processes, so it starts some itself.
#![allow(clippy::disallowed_methods)]

use muleteer_protocol::client::Client;
use muleteer_protocol::v1::{Command, Reply, Request, Spawn};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::Write;
use std::path::Path;

/// How many requests are sent at the same time: as many as the gate allows one user, and more than
/// it needs.
const CONNECTIONS: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["bare", count, command @ ..] if !command.is_empty() => bare(count.parse()?, command),
        ["durable", writes, file, command @ ..] if !command.is_empty() => {
            durable(writes.parse()?, file, command)
        }
        ["respawn", program, file, args @ ..] => respawn(program, file, args),
        [
            how @ ("daemon" | "confined" | "unconfined"),
            socket,
            key,
            project,
            count,
            command @ ..,
        ] if !command.is_empty() => {
            let key = std::fs::read_to_string(key)?.trim().to_string();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let names: &[&str] = if *how == "daemon" { &["PATH"] } else { &["PATH", "HOME"] };
            let value = |name: &str| (name.into(), std::env::var(name).unwrap_or_default());
            let spawn = Spawn {
                role: "developer".into(),
                project: (*project).into(),
                prompt: "bench".into(),
                backend: Some("subprocess".into()),
                command: Some(Command::Argv(command.iter().map(|word| (*word).into()).collect())),
                env: names.iter().map(|name| value(name)).collect(),
                sandbox: *how == "confined",
                ..Spawn::default()
            };
            runtime.block_on(through_daemon(socket, &key, count.parse()?, &spawn))
        }
        _ => Err("spawner bare COUNT PROGRAM… | spawner durable WRITES FILE PROGRAM… | spawner \
            respawn PROGRAM FILE… | spawner \
            (daemon|confined|unconfined) SOCKET KEY-FILE PROJECT COUNT PROGRAM…"
            .into()),
    }
}

fn now() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

fn bare(count: usize, command: &[&str]) -> Result<(), Box<dyn Error>> {
    let begun = now();
    let mut children = Vec::with_capacity(count);
    for _ in 0..count {
        children.push(std::process::Command::new(command[0]).args(&command[1..]).spawn()?);
    }
    for mut child in children {
        child.wait()?;
    }
    println!("{begun}");
    Ok(())
}

fn durable(writes: usize, file: &str, command: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut log = std::fs::File::options().create(true).append(true).open(file)?;
    let begun = now();
    for _ in 0..writes {
        log.write_all(&[b'a'; 512])?;
        log.sync_data()?;
    }
    std::process::Command::new(command[0]).args(&command[1..]).spawn()?.wait()?;
    println!("{begun}");
    Ok(())
}

fn respawn(program: &str, file: &str, args: &[&str]) -> Result<(), Box<dyn Error>> {
    let start = || std::process::Command::new(program).arg(file).args(args).spawn();
    let lines = || std::fs::read_to_string(file).unwrap_or_default().lines().count();
    let wait = |count| {
        while lines() < count {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    let mut first = start()?;
    wait(1);
    let begun = now();
    first.kill()?;
    first.wait()?;
    let mut second = start()?;
    wait(2);
    second.kill()?;
    second.wait()?;
    println!("{begun}");
    Ok(())
}

async fn through_daemon(
    socket: &str,
    key: &str,
    count: usize,
    asked: &Spawn,
) -> Result<(), Box<dyn Error>> {
    let mut clients = Vec::new();
    for _ in 0..count.min(CONNECTIONS) {
        clients.push(Client::connect(Path::new(socket), "spawner", Some(key.to_string())).await?);
    }
    let many = clients.len();
    let begun = now();
    let all = clients.into_iter().enumerate().map(|(which, mut client)| {
        let asked = asked.clone();
        async move {
            for number in (which..count).step_by(many) {
                let spawn = Spawn { id: id(begun, number), ..asked.clone() };
                match client.call(Request::Spawn(Box::new(spawn))).await {
                    Ok(Reply::Spawned { .. }) => {}
                    Ok(other) => return Err(format!("{other:?}")),
                    Err(error) => return Err(error.to_string()),
                }
            }
            Ok(())
        }
    });
    let mut running = tokio::task::JoinSet::new();
    for one in all {
        running.spawn(one);
    }
    while let Some(outcome) = running.join_next().await {
        outcome??;
    }
    println!("{begun}");
    Ok(())
}

/// Returns an id that differs from those of other rounds.
fn id(begun: i128, number: usize) -> String {
    format!("b{:x}n{number:x}", begun / 1000)
}
