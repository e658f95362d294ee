//! The steps of installing and removing a service.

use crate::service::{LABEL, Manager, Scope, Service, UNIT, unit};
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Written completely, or left alone if the file has this content already.
    Write {
        path: PathBuf,
        contents: String,
    },
    Remove {
        path: PathBuf,
    },
    Run {
        argv: Vec<String>,
        may_fail: bool,
    },
}

/// The state before the first step.
#[derive(Debug, Clone, Default)]
pub struct Present {
    /// The text of the installed unit or plist.
    pub file: Option<String>,
    /// The manager runs the service.
    pub active: bool,
}

pub fn install(service: &Service, present: &Present) -> Vec<Step> {
    let contents = unit::render(service);
    let path = service.path();
    let changed = present.file.as_deref() != Some(contents.as_str());
    let file = path.display().to_string();
    let mut steps = vec![Step::Write { path, contents }];
    match service.manager {
        Manager::Systemd => {
            if changed {
                steps.push(systemctl(service, &["daemon-reload"]));
            }
            steps.push(systemctl(service, &["enable", UNIT]));
            // Agents survive both a restart and a start. Starting an active unit has no effect.
            let verb = if changed && present.active { "restart" } else { "start" };
            steps.push(systemctl(service, &[verb, UNIT]));
        }
        Manager::Launchd => {
            if changed && present.active {
                steps.push(launchctl(&["bootout", &target(service)], true));
            }
            if changed || !present.active {
                steps.push(launchctl(&["enable", &target(service)], false));
                steps.push(launchctl(&["bootstrap", &domain(service), &file], false));
            }
        }
    }
    steps
}

pub fn uninstall(service: &Service, present: &Present) -> Vec<Step> {
    if present.file.is_none() && !present.active {
        return vec![];
    }
    let path = service.path();
    match service.manager {
        Manager::Systemd => vec![
            systemctl(service, &["disable", "--now", UNIT]),
            Step::Remove { path },
            systemctl(service, &["daemon-reload"]),
        ],
        Manager::Launchd => {
            vec![launchctl(&["bootout", &target(service)], !present.active), Step::Remove { path }]
        }
    }
}

fn systemctl(service: &Service, words: &[&str]) -> Step {
    let scope = match service.scope {
        Scope::User => "--user",
        Scope::System => "--system",
    };
    run(["systemctl", scope].into_iter().chain(words.iter().copied()), false)
}

fn launchctl(words: &[&str], may_fail: bool) -> Step {
    run(std::iter::once("launchctl").chain(words.iter().copied()), may_fail)
}

fn run<'a>(words: impl Iterator<Item = &'a str>, may_fail: bool) -> Step {
    Step::Run { argv: words.map(str::to_string).collect(), may_fail }
}

fn domain(service: &Service) -> String {
    match service.scope {
        Scope::User => format!("gui/{}", service.uid),
        Scope::System => "system".into(),
    }
}

fn target(service: &Service) -> String {
    format!("{}/{LABEL}", domain(service))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::unit::tests::service;

    fn words(steps: &[Step]) -> Vec<String> {
        let word = |step: &Step| match step {
            Step::Write { path, .. } => format!("write {}", path.display()),
            Step::Remove { path } => format!("remove {}", path.display()),
            Step::Run { argv, .. } => argv.join(" "),
        };
        steps.iter().map(word).collect()
    }

    #[test]
    fn a_first_install_starts_it_and_a_second_one_changes_nothing() {
        let service = service(Manager::Systemd, Scope::User);
        let first = install(&service, &Present::default());
        assert_eq!(
            words(&first),
            [
                "write /home/ann/.config/systemd/user/muleteer.service",
                "systemctl --user daemon-reload",
                "systemctl --user enable muleteer.service",
                "systemctl --user start muleteer.service",
            ]
        );
        let file = Some(unit::render(&service));
        let again = install(&service, &Present { file, active: true });
        assert_eq!(
            words(&again)[1..],
            ["systemctl --user enable muleteer.service", "systemctl --user start muleteer.service"],
            "neither reloaded nor restarted"
        );
        let other = install(&service, &Present { file: Some("[Unit]".into()), active: true });
        assert_eq!(
            words(&other).last().map(String::as_str),
            Some("systemctl --user restart muleteer.service")
        );
    }

    #[test]
    fn uninstall_skips_missing_files() {
        for manager in [Manager::Systemd, Manager::Launchd] {
            assert_eq!(uninstall(&service(manager, Scope::System), &Present::default()), vec![]);
        }
        let present = Present { file: Some(String::new()), active: true };
        assert_eq!(
            words(&uninstall(&service(Manager::Systemd, Scope::System), &present)),
            [
                "systemctl --system disable --now muleteer.service",
                "remove /etc/systemd/system/muleteer.service",
                "systemctl --system daemon-reload",
            ]
        );
    }

    #[test]
    fn launchd_commands_are_exact() {
        let service = service(Manager::Launchd, Scope::User);
        let present = Present { file: Some("old".into()), active: true };
        let plist = "/home/ann/Library/LaunchAgents/dev.muleteer.daemon.plist";
        assert_eq!(
            words(&install(&service, &present)),
            [
                format!("write {plist}"),
                "launchctl bootout gui/1000/dev.muleteer.daemon".into(),
                "launchctl enable gui/1000/dev.muleteer.daemon".into(),
                format!("launchctl bootstrap gui/1000 {plist}"),
            ]
        );
        let present = Present { file: Some(unit::render(&service)), ..present };
        assert_eq!(words(&install(&service, &present)), [format!("write {plist}")]);
    }
}
