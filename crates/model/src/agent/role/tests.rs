use crate::agent::role::*;
use crate::config::{Config, Trust};
use crate::conversation::command::structured::COORDINATOR;
use crate::event::mcp::Tool;

fn source(layer: RoleLayer, file: &str, text: &str) -> RoleSource {
    RoleSource { layer, file: file.into(), text: Ok(text.into()), trust: Trust::Trusted }
}

fn project(text: &str) -> RoleSource {
    source(RoleLayer::Project, "/work/shop/.muleteer/roles/api-dev.md", text)
}

#[test]
fn the_shipped_roles_are_whole() {
    let config = Config::defaults().unwrap();
    let catalog = Catalog::new(&[]);
    assert_eq!(catalog.errors().count(), 0, "{:?}", catalog.errors().next());
    let found: Vec<_> =
        catalog.roles().map(|role| (role.name.as_str(), role.category.as_str())).collect();
    assert_eq!(
        found,
        [
            ("developer", "coding"),
            ("product-analyst", "conversational"),
            ("project-coordinator", "conversational"),
            ("reviewer", "research"),
            ("tester", "coding"),
        ]
    );
    for role in catalog.roles() {
        assert!(config.category(&role.category).is_ok());
        assert!(role.display_name.is_some() && role.description.is_some(), "{}", role.name);
        assert!(
            (400..6_000).contains(&role.body.len()),
            "{}: {} bytes",
            role.name,
            role.body.len()
        );
    }
}

/// An agent calls a tool by the name that its role gives it.
#[test]
fn shipped_roles_name_only_tools_and_commands_that_exist() {
    const OTHERS: [&str; 3] = ["dispatch_id", "sign_off", "start_run"];
    let named = |text: &str| -> Vec<String> {
        let quoted = text.split('`').skip(1).step_by(2);
        quoted.filter(|word| word.contains('_')).map(String::from).collect()
    };
    for (role, text) in SHIPPED {
        let prose: String = text.split("```").step_by(2).collect();
        for word in named(&prose) {
            let is_known = Tool::named(&word).is_some() || OTHERS.contains(&word.as_str());
            assert!(is_known, "{role}: {word}");
        }
    }
    let coordinator = SHIPPED.iter().find(|(role, _)| *role == COORDINATOR).unwrap().1;
    for tool in ["draft_agent", "await_agent", "message_agent", "read_journal", "ask_human"] {
        assert!(named(coordinator).contains(&tool.to_string()), "{tool}");
    }
}

#[test]
fn a_role_is_read_in_either_spelling() {
    let camel = "---\nname: api-dev\ncategory: research\ndisplayName: API Dev\niconUrl: \
        https://x/y.png\nmodel: claude-opus-4-6\n\
                 backend: claude_code\ntools: [Read, Grep]\n---\n\nYou are.\n\n---\nA rule.\n";
    let role = parse(&project(camel)).unwrap();
    assert_eq!(
        role,
        parse(&project(
            &camel.replace("displayName", "display_name").replace("iconUrl", "icon_url")
        ))
        .unwrap()
    );
    assert_eq!(
        (role.display(), role.category.as_str(), role.model.as_deref()),
        ("API Dev", "research", Some("claude-opus-4-6"))
    );
    assert_eq!(
        (role.backend, role.tools.map(|tools| tools.len())),
        (Some(BackendChoice::ClaudeCode), Some(2))
    );
    assert_eq!(role.body, "You are.\n\n---\nA rule.");
}

#[test]
fn file_without_front_matter_is_a_role() {
    for text in
        ["You are.\n", "---\n---\nYou are.", "\u{feff}---\r\n# nothing\r\n---\r\nYou are.\r\n"]
    {
        let role = parse(&project(text)).unwrap();
        assert_eq!(
            (role.name.as_str(), role.category.as_str(), role.body.as_str()),
            ("api-dev", "coding", "You are."),
            "{text:?}"
        );
    }
}

#[test]
fn a_fault_is_located_in_the_file() {
    for (name, text) in [
        ("unknown_key", "---\nname: api-dev\ndisplayNme: API\n---\nYou are.\n"),
        ("wrong_type", "---\nname: api-dev\ntools: {a: b}\n---\nYou are.\n"),
        ("no_end", "---\nname: api-dev\nYou are.\n"),
        ("bad_yaml", "---\nname: api-dev\ndescription: says: no\n---\nYou are.\n"),
        ("bad_name", "---\ncategory: coding\nname: ../../x\n---\nYou are.\n"),
        ("bad_backend", "---\nbackend: cluade-code\n---\nYou are.\n"),
    ] {
        let error = parse(&project(text)).unwrap_err();
        insta::assert_snapshot!(name, error.to_string());
    }
}

#[test]
fn the_more_specific_file_wins() {
    let text = |words: &str| format!("---\nname: reviewer\n---\n{words}\n");
    let user =
        source(RoleLayer::User, "/home/ann/.config/muleteer/roles/reviewer.md", &text("user"));
    let claude =
        source(RoleLayer::ClaudeAgents, "/work/shop/.claude/agents/reviewer.md", &text("claude"));
    let project =
        source(RoleLayer::Project, "/work/shop/.muleteer/roles/reviewer.md", &text("project"));
    let body = |sources: &[&RoleSource]| {
        let sources: Vec<_> = sources.iter().map(|source| (*source).clone()).collect();
        resolve("reviewer", &sources).unwrap().body
    };
    assert_eq!(body(&[&project, &user, &claude]), "project");
    assert_eq!(body(&[&claude, &user]), "claude");
    assert_eq!(body(&[&user]), "user");
    let role = resolve("reviewer", &[user]).unwrap();
    assert_eq!(
        (role.layer, role.file.as_str()),
        (RoleLayer::User, "/home/ann/.config/muleteer/roles/reviewer.md")
    );
    assert_eq!(resolve("reviewer", &[]).unwrap().layer, RoleLayer::Shipped);
}

#[test]
fn two_files_of_one_layer_are_not_one_role() {
    let named = |layer, file: &str| {
        source(layer, file, "---\ncategory: research\nname: critic\n---\nYou are.\n")
    };
    let [a, b] = ["/r/a.md", "/r/b.md"].map(|file| named(RoleLayer::User, file));
    let project = named(RoleLayer::Project, "/w/.muleteer/roles/a.md");
    for sources in [[a.clone(), b.clone()], [b.clone(), a.clone()]] {
        let Err(RoleError::Invalid(error)) = resolve("critic", &sources) else {
            panic!("one was taken")
        };
        assert_eq!(error.message, "two files define the role `critic`: /r/a.md and /r/b.md");
        assert_eq!((error.file.as_deref(), error.line), (Some("/r/b.md"), Some(3)));
        assert!(error.hint.is_some_and(|hint| hint.contains("rename one of them")));
    }
    let shadowed = Catalog::new(&[a.clone(), b.clone(), project]);
    assert_eq!(
        (shadowed.errors().count(), shadowed.resolve("critic").unwrap().layer),
        (0, RoleLayer::Project)
    );
    // Names that come from files can collide too, and a third file does not make one of them valid.
    let by_file = source(RoleLayer::User, "/r/critic.md", "You are.\n");
    let catalog = Catalog::new(&[by_file, a.clone(), b]);
    assert!(catalog.resolve("critic").is_err() && catalog.errors().count() == 1);
    let broken = source(RoleLayer::User, "/r/critic.md", "---\nfoo: 1\n---\n");
    for sources in [[a.clone(), broken.clone()], [broken, a]] {
        assert_eq!(
            Catalog::new(&sources).errors().next().unwrap().file.as_deref(),
            Some("/r/critic.md")
        );
    }
}

#[test]
fn a_broken_file_is_an_error_of_its_own_role_only() {
    let catalog = Catalog::new(&[
        project("---\nfoo: 1\n---\n"),
        source(RoleLayer::User, "/r/ops.md", "You are.\n"),
    ]);
    assert!(matches!(catalog.resolve("api-dev"), Err(RoleError::Invalid(_))));
    assert!(catalog.resolve("ops").is_ok() && catalog.resolve("developer").is_ok());
    assert_eq!(catalog.errors().count(), 1);
    let Err(RoleError::Unknown(unknown)) = catalog.resolve("develper") else { panic!("found") };
    assert_eq!(
        (unknown.to_string().as_str(), unknown.hint.as_str()),
        ("no role `develper`", "did you mean `developer`?")
    );
}

/// Claude Code's own files are often invalid YAML: descriptions contain colons, quotes and `\n`.
#[test]
fn claude_agents_are_read_leniently() {
    let text = "---\nname: code-reviewer\ndescription: Use when: code changed. Examples: \
        <example>user: \"go\"</example>\n\
                tools: Read, Grep, Bash\nmodel: inherit\ncolor: purple\nmemory: user\n---\n\nYou \
                review.\n";
    let role = parse(&source(RoleLayer::ClaudeAgents, "/w/.claude/agents/code-reviewer.md", text))
        .unwrap();
    assert_eq!(
        (role.name.as_str(), role.category.as_str(), role.model),
        ("code-reviewer", "coding", None)
    );
    assert_eq!(role.tools.unwrap(), ["Read", "Grep", "Bash"]);
    assert!(role.description.unwrap().starts_with("Use when: code"));
    let sonnet = text.replace("inherit", "'sonnet'");
    let role = parse(&source(RoleLayer::ClaudeAgents, "/w/.claude/agents/x.md", &sonnet)).unwrap();
    assert_eq!(role.model.as_deref(), Some("sonnet"));
}

proptest::proptest! {
    #[test]
    fn no_file_panics(
        front in "([a-z]{1,8}|[:\\-{}\\[\\]'\" \n]|name|model|é){0,30}",
        ended in proptest::prelude::any::<bool>()
    ) {
        let text = format!("---\n{front}{}", if ended { "\n---\nx" } else { "" });
        for layer in [RoleLayer::Project, RoleLayer::ClaudeAgents] {
            let _ = parse(&source(layer, "r.md", &text));
        }
    }
}

#[test]
fn tools_are_parsed_in_every_form_and_faults_are_named() {
    let claude = |front: &str| {
        parse(&RoleSource {
            layer: RoleLayer::ClaudeAgents,
            file: "/p/.claude/agents/looker.md".into(),
            text: Ok(format!("---\nname: looker\n{front}\n---\nYou look.\n")),
            trust: Trust::Trusted,
        })
    };
    for front in [
        "tools: Read, Bash(git log *)",
        "tools: [Read, \"Bash(git log *)\"]",
        "tools:\n  - Read\n  - Bash(git log *)",
        "tools: [\n  Read,\n  Bash(git log *)\n]",
        "tools: [Read,\n  Bash(git log *)]",
    ] {
        assert_eq!(claude(front).unwrap().tools.unwrap(), ["Read", "Bash(git log *)"], "{front}");
    }
    let role = claude("disallowedTools: Bash, Write\npermissionMode: plan").unwrap();
    assert_eq!(
        (role.disallowed_tools, role.permission_mode),
        (vec!["Bash".into(), "Write".into()], Some(PermissionMode::Plan))
    );
    assert!(claude("permissionMode: whatever").is_err() && claude("tools: Read, Bash(").is_err());
    assert_eq!(claude("model: opus").unwrap().restricts(), None);
    assert_eq!(
        claude("tools: Read\npermissionMode: default").unwrap().restricts().as_deref(),
        Some("`tools` and `permissionMode`")
    );
    let ours = parse(&RoleSource {
        layer: RoleLayer::Project,
        file: "looker.md".into(),
        text: Ok("---\nname: looker\ntools: [Read]\ndisallowedTools: [Bash]\npermissionMode: \
             acceptEdits\n---\nYou look.\n"
            .into()),
        trust: Trust::Trusted,
    });
    let ours = ours.unwrap();
    assert_eq!(
        (ours.tools, ours.disallowed_tools),
        (Some(vec!["Read".to_string()]), vec!["Bash".to_string()])
    );
    assert_eq!(ours.permission_mode, Some(PermissionMode::AcceptEdits));
}

#[test]
fn empty_tools_are_a_restriction_and_missing_ones_are_none() {
    let read = |layer, front: &str| {
        parse(&source(layer, "looker.md", &format!("---\n{front}\n---\nYou look.\n"))).unwrap()
    };
    for layer in [RoleLayer::ClaudeAgents, RoleLayer::Project] {
        for front in ["tools: []", "tools: \"\"", "tools: ''", "tools:\n  []", "tools: [\n  ]"] {
            let role = read(layer, front);
            assert_eq!(role.tools, Some(vec![]), "{layer} {front}");
            assert_eq!(role.restricts().as_deref(), Some("`tools`"), "{layer} {front}");
        }
        for front in ["model: opus", "tools:", "tools:\nmodel: opus"] {
            let role = read(layer, front);
            assert_eq!((role.tools.clone(), role.restricts()), (None, None), "{layer} {front}");
        }
    }
}
