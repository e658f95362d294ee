//! What a role from a repository may say before the user has trusted it: nothing that gives an agent more
//! rights or more money than the user's own role of that name, or the configuration, would.

use super::{Catalog, Role, RoleError, RoleLayer, RoleSource, place_of, text_of};
use crate::config::trust::Effect;
use crate::config::trust::Stricter::{AtMost, Fewer, Mode as StricterMode, Same};
use crate::config::{Category, Config, Ignored, Trust};
use crate::permission::{Mode, Permissions};
use serde_json::{Value, json};

/// A role as it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    pub role: Role,
    /// What its file says and does not count.
    pub ignored: Vec<Ignored>,
}

impl Catalog {
    /// The role of this name without what an untrusted repository may not say; `sources` are those that the catalog was
    /// made of.
    ///
    /// # Errors
    /// When no role has that name, or its file is faulty.
    pub fn in_force(&self, name: &str, config: &Config, sources: &[RoleSource]) -> Result<InForce, RoleError> {
        let role = self.resolve(name)?.clone();
        if role.trust == Trust::Trusted || role.layer <= RoleLayer::User {
            return Ok(InForce { role, ignored: vec![] });
        }
        let source = sources.iter().find(|source| source.layer == role.layer && source.file == role.file);
        let text = source.map_or("", text_of);
        let mut held = Held { role, ignored: vec![], text };
        held.hold(self.replaced.get(name), config);
        Ok(InForce { role: held.role, ignored: held.ignored })
    }
}

struct Held<'a> {
    role: Role,
    ignored: Vec<Ignored>,
    text: &'a str,
}

impl Held<'_> {
    fn hold(&mut self, own: Option<&Role>, config: &Config) {
        let category = own.map_or("coding", |own| &own.category).to_string();
        let looser = |one: &Category, than: &Category| {
            let most = |limit: Option<f64>| limit.unwrap_or(f64::INFINITY);
            let turns = |category: &Category| category.max_turns.unwrap_or(u32::MAX);
            let seconds = |category: &Category| category.timeout.map_or(u64::MAX, |span| span.as_secs());
            most(one.budget_usd) > most(than.budget_usd)
                || turns(one) > turns(than)
                || seconds(one) > seconds(than)
                || strictness(mode_of(one, config)) < strictness(mode_of(than, config))
        };
        let categories = (config.category(&self.role.category), config.category(&category));
        if let (Ok(one), Ok(than)) = categories
            && looser(one, than)
        {
            let said = std::mem::replace(&mut self.role.category, category);
            self.ignore("category", "category", json!(said), Effect::Loosens(AtMost));
        }
        self.hold_permissions(own, config);
        if let Some(own) = own.filter(|own| !own.tools.is_empty()) {
            let within = self.role.tools.iter().all(|tool| own.tools.contains(tool));
            if self.role.tools.is_empty() || !within {
                let said = std::mem::replace(&mut self.role.tools, own.tools.clone());
                self.ignore("tools", "tools", json!(said), Effect::Loosens(Fewer));
            }
        }
    }

    fn hold_permissions(&mut self, own: Option<&Role>, config: &Config) {
        let none = Permissions::default();
        let own = own.map_or(&none, |own| &own.permissions);
        let of_category = config.category(&self.role.category).ok().map(|category| mode_of(category, config));
        let before = own.mode.or(of_category).unwrap_or_default();
        let said = std::mem::replace(&mut self.role.permissions, own.clone());
        let mode = said.mode.unwrap_or(before);
        let permissions = &mut self.role.permissions;
        if strictness(mode) >= strictness(before) {
            permissions.mode = said.mode.or(own.mode);
        }
        let in_force = permissions.mode.unwrap_or(before);
        // Under `deny` a further rule asks where it was refused before.
        let asks = strictness(in_force) < strictness(Mode::Deny);
        permissions.deny.extend(said.deny);
        if asks {
            permissions.ask.extend(said.ask.clone());
        }
        if strictness(mode) < strictness(before) {
            self.ignore("permissions", "permissions.mode", json!(said.mode), Effect::Loosens(StricterMode));
        }
        if said.allow.iter().any(|rule| !own.allow.contains(rule)) {
            self.ignore("permissions", "permissions.allow", json!(said.allow), Effect::Loosens(Fewer));
        }
        if !asks && !said.ask.is_empty() {
            self.ignore("permissions", "permissions.ask", json!(said.ask), Effect::Loosens(Same));
        }
    }

    fn ignore(&mut self, line_of: &str, key: &str, value: Value, effect: Effect) {
        self.ignored.push(Ignored {
            key: key.into(),
            value,
            effect: effect.as_str(),
            file: Some(self.role.file.clone()),
            line: place_of(self.text, line_of).map(|place| place.line),
        });
    }
}

fn mode_of(category: &Category, config: &Config) -> Mode {
    category.permissions.mode.or(config.permissions.mode).unwrap_or_default()
}

fn strictness(mode: Mode) -> u8 {
    match mode {
        Mode::Allow => 0,
        Mode::Ask => 1,
        Mode::Deny => 2,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::{Layer, Source, load};

    fn source(layer: RoleLayer, text: &str) -> RoleSource {
        let trust = if layer <= RoleLayer::User { Trust::Trusted } else { Trust::Untrusted };
        RoleSource { layer, file: format!("{}/a.md", layer.as_str()), text: Ok(text.into()), trust }
    }

    fn held(config: &str, user: &str, project: &str) -> (Role, Vec<String>) {
        let config = load(&[Source::new(Layer::User, "config.yaml", config)], &[]).unwrap();
        let mut sources = vec![source(RoleLayer::Project, project)];
        if !user.is_empty() {
            sources.push(source(RoleLayer::User, user));
        }
        let found = Catalog::new(&sources).in_force("a", &config, &sources).unwrap();
        let lines = found.ignored.iter().map(|one| format!("{}:{}", one.key, one.line.unwrap_or_default()));
        (found.role, lines.collect())
    }

    #[test]
    fn untrusted_role_loosens_nothing() {
        let asks = "permissions: {mode: ask}";
        for (config, user, project, keys) in [
            (asks, "", "---\npermissions: {mode: allow}\n---\n", &["permissions.mode:2"][..]),
            ("", "", "---\nname: a\npermissions: {allow: [Bash]}\n---\n", &["permissions.allow:3"]),
            ("permissions: {mode: deny}", "", "---\npermissions: {ask: [Bash]}\n---\n", &["permissions.ask:2"]),
            (
                "",
                "---\npermissions: {mode: deny}\n---\n",
                "---\npermissions: {mode: ask}\n---\n",
                &["permissions.mode:2"],
            ),
            ("", "", "---\ncategory: conversational\n---\n", &["category:2"]),
            ("", "---\ntools: [Read]\n---\n", "---\ntools: [Read, Bash]\n---\n", &["tools:2"]),
            ("", "---\ntools: [Read]\n---\n", "You are.\n", &["tools:0"]),
        ] {
            let (role, ignored) = held(config, user, project);
            assert_eq!(ignored, keys, "{project}");
            assert!(role.permissions.allow.is_empty() && role.category == "coding", "{role:?}");
            assert!(role.permissions.mode.is_none_or(|mode| mode == Mode::Deny), "{role:?}");
        }
    }

    #[test]
    fn untrusted_role_may_tighten_and_keeps_what_it_is() {
        let project =
            "---\ntools: [Read]\nmodel: opus\npermissions: {mode: ask, ask: [Read], deny: [Bash]}\n---\nYou are.\n";
        let (role, ignored) = held("", "", project);
        assert_eq!((ignored.len(), role.permissions.mode, role.permissions.deny.len()), (0, Some(Mode::Ask), 1));
        assert_eq!(
            (role.tools, role.model.as_deref(), role.body.as_str()),
            (vec!["Read".to_string()], Some("opus"), "You are.")
        );
        // What the user's own role of that name forbids stays forbidden.
        let (role, ignored) = held("", "---\npermissions: {mode: deny, deny: [Bash]}\n---\n", "You are.\n");
        assert_eq!((ignored.len(), role.permissions.mode, role.permissions.deny.len()), (0, Some(Mode::Deny), 1));
        let (role, ignored) = held("", "---\ncategory: conversational\n---\n", "---\ncategory: conversational\n---\n");
        assert_eq!((ignored.len(), role.category.as_str()), (0, "conversational"));
    }

    #[test]
    fn trusted_role_counts_as_it_is() {
        let mut sources = vec![source(RoleLayer::Project, "---\npermissions: {allow: [Bash]}\n---\n")];
        sources[0].trust = Trust::Trusted;
        let found = Catalog::new(&sources).in_force("a", &Config::defaults().unwrap(), &sources).unwrap();
        assert_eq!((found.ignored.len(), found.role.permissions.allow.len()), (0, 1));
    }
}
