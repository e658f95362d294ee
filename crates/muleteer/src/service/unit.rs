//! Renders the files of `deploy/` with this installation's paths.

use crate::service::{Manager, Scope, Service};
use std::fmt::Write as _;
use std::path::Path;

const USER_UNIT: &str = include_str!("../../../../deploy/systemd/user/muleteer.service");
const SYSTEM_UNIT: &str = include_str!("../../../../deploy/systemd/system/muleteer.service");
const PLIST: &str = include_str!("../../../../deploy/launchd/dev.muleteer.daemon.plist");

/// Returns the text of the unit or plist.
pub fn render(service: &Service) -> String {
    match service.manager {
        Manager::Systemd => unit(service),
        Manager::Launchd => plist(service),
    }
}

fn unit(service: &Service) -> String {
    let template = match service.scope {
        Scope::User => USER_UNIT,
        Scope::System => SYSTEM_UNIT,
    };
    let mut text = String::new();
    for line in template.lines() {
        match line {
            "ExecStart=/usr/bin/muleteer daemon --replace" => {
                for (name, value) in &service.places {
                    let _ =
                        writeln!(text, "Environment={}", quoted(&format!("{name}={value}"), false));
                }
                let _ =
                    write!(text, "ExecStart={}", quoted(&service.program.to_string_lossy(), true));
                if let Some(config) = &service.config {
                    let _ = write!(text, " --config {}", quoted(&config.to_string_lossy(), true));
                }
                text.push_str(" daemon --replace");
            }
            "User=muleteer" => {
                let _ = write!(text, "User={}", service.user.replace('%', "%%"));
            }
            line => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Quotes one word of a unit file. `%` begins a specifier everywhere, `$` a variable in command
/// lines only.
fn quoted(word: &str, command: bool) -> String {
    let mut text = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '%' => text.push_str("%%"),
            '$' if command => text.push_str("$$"),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    text.push('"');
    let plain = |c: char| c.is_alphanumeric() || "/._-+@=:,".contains(c);
    if word.chars().all(plain) { word.to_string() } else { text }
}

fn plist(service: &Service) -> String {
    let string = |text: &str| format!("<string>{}</string>", escaped(text));
    let path = |path: &Path| string(&path.to_string_lossy());
    let mut text = PLIST
        .replace(&string("/usr/local/bin/muleteer"), &path(&service.program))
        .replace(
            &string("/Users/muleteer/Library/Logs/muleteer.log"),
            &path(&service.home.join("Library/Logs/muleteer.log")),
        )
        .replace(&string("/Users/muleteer"), &path(&service.home));
    if let Some(config) = &service.config {
        let words =
            format!("{}\n\t\t{}\n\t\t{}", string("--config"), path(config), string("daemon"));
        text = text.replace(&string("daemon"), &words);
    }
    let mut places = String::new();
    for (name, value) in &service.places {
        let _ = write!(places, "\t\t<key>{}</key>\n\t\t{}\n", escaped(name), string(value));
    }
    text = text.replace("\t\t<key>PATH</key>", &format!("{places}\t\t<key>PATH</key>"));
    if service.scope == Scope::System {
        let user =
            format!("\t<key>UserName</key>\n\t{}\n\t<key>RunAtLoad</key>", string(&service.user));
        text = text.replace("\t<key>RunAtLoad</key>", &user);
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::service::plist_schema;

    pub(crate) fn service(manager: Manager, scope: Scope) -> Service {
        Service {
            manager,
            scope,
            program: "/opt/my agents/muleteer".into(),
            config: None,
            places: vec![],
            user: "ann".into(),
            uid: 1000,
            home: "/home/ann".into(),
            config_home: "/home/ann/.config".into(),
        }
    }

    fn line<'a>(text: &'a str, key: &str) -> &'a str {
        text.lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_else(|| panic!("no {key} in\n{text}"))
    }

    #[test]
    fn a_unit_has_our_paths_and_nothing_of_the_template_s() {
        let mut user = service(Manager::Systemd, Scope::User);
        user.places = vec![("XDG_STATE_HOME".into(), "/data/100%".into())];
        user.config = Some("/etc/mule.yaml".into());
        let text = render(&user);
        assert_eq!(
            line(&text, "ExecStart="),
            "ExecStart=\"/opt/my agents/muleteer\" --config /etc/mule.yaml daemon --replace"
        );
        assert_eq!(line(&text, "Environment="), "Environment=\"XDG_STATE_HOME=/data/100%%\"");
        let system = render(&service(Manager::Systemd, Scope::System));
        assert_eq!(line(&system, "User="), "User=ann");
        for text in [text, system] {
            assert!(!text.contains("/usr/bin/muleteer"), "{text}");
            for wanted in [
                "Type=notify",
                "KillMode=process",
                "OOMPolicy=continue",
                "WatchdogSec=60",
                "Delegate=yes",
            ] {
                assert!(text.lines().any(|line| line == wanted), "no {wanted}");
            }
        }
    }

    #[test]
    fn unit_arguments_are_quoted() {
        for (word, wanted) in [
            ("/usr/bin/muleteer", "/usr/bin/muleteer"),
            ("/a b", "\"/a b\""),
            ("/100%", "\"/100%%\""),
            ("/a$b\"c\\", "\"/a$$b\\\"c\\\\\""),
        ] {
            assert_eq!(quoted(word, true), wanted);
        }
        assert_eq!(quoted("A=$b", false), "\"A=$b\"");
    }

    #[test]
    fn a_plist_has_our_paths_and_nothing_of_the_template_s() {
        let mut user = service(Manager::Launchd, Scope::User);
        user.program = "/opt/a&b/muleteer".into();
        user.config = Some("/c.yaml".into());
        user.places = vec![("XDG_STATE_HOME".into(), "/data".into())];
        let text = render(&user);
        assert!(
            text.contains("<string>/opt/a&amp;b/muleteer</string>\n\t\t<string>--config</string>"),
            "{text}"
        );
        assert!(text.contains("<key>XDG_STATE_HOME</key>\n\t\t<string>/data</string>"), "{text}");
        assert!(!text.contains("/Users/muleteer") && !text.contains("UserName"), "{text}");
        let system = render(&service(Manager::Launchd, Scope::System));
        for text in [PLIST, &text, &system] {
            assert_eq!(plist_schema::faults(text), Vec::<String>::new(), "{text}");
        }
        let misspelt = PLIST
            .replace("KeepAlive", "KeepAlife")
            .replace("<integer>30</integer>", "<string>30</string>");
        assert_eq!(plist_schema::faults(&misspelt).len(), 2);
        assert!(system.contains("<key>UserName</key>\n\t<string>ann</string>"), "{system}");
    }
}
