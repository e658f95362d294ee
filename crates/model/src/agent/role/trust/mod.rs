//! Merges a role of an untrusted repository with the user's own role of that name.
//!
//! Nothing in the merged role gives an agent more rights, more money or less supervision than the
//! user's own role of that name. Without such a role, the bound is a role with defaults.
//! Restrictions of the file count.

use crate::agent::permission::{Mode, PermissionMode, Permissions, Rule};
use crate::agent::role::{Catalog, Role, RoleError, RoleLayer, RoleSource, place_of, text_of};
use crate::config::trust::Effect;
use crate::config::trust::Stricter::{AtMost, Fewer, Mode as StricterMode, More, Same};
use crate::config::{Category, Config, Ignored, OnCrash, Trust, canonical, resolve_model};
use crate::event::mcp::Access;
use crate::monitor::Responses;
use serde::Serialize;
use serde_json::Value;

/// The category of a role that names none.
const CODING: &str = "coding";

/// A role with the values that count.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    pub role: Role,
    /// The values of its file, and omissions from the user's own role, that do not count.
    pub ignored: Vec<Ignored>,
}

impl Catalog {
    /// Returns the role of this name without the values that an untrusted repository may not set.
    /// `sources` are those that the catalog was made of.
    ///
    /// # Errors
    /// When no role has that name, or its file is faulty. Also when the file is untrusted and the
    /// user's own role of that name is faulty, because then nobody can tell what that role forbids.
    pub fn in_force(
        &self,
        name: &str,
        config: &Config,
        sources: &[RoleSource],
    ) -> Result<InForce, RoleError> {
        let role = self.resolve(name)?.clone();
        if role.is_own() {
            return Ok(InForce { role, ignored: vec![] });
        }
        let own = self.own.get(name).map(Result::as_ref).transpose();
        let own = own.map_err(|error| RoleError::from(error.clone()))?;
        let source =
            sources.iter().find(|source| source.layer == role.layer && source.file == role.file);
        let text = source.map_or("", text_of);
        let mut held = Held { role, ignored: vec![], text, own, config };
        held.hold();
        Ok(InForce { role: held.role, ignored: held.ignored })
    }
}

impl Role {
    /// Whether the user wrote it or trusts it.
    pub(super) fn is_own(&self) -> bool {
        self.trust == Trust::Trusted || self.layer <= RoleLayer::User
    }
}

struct Held<'a> {
    role: Role,
    ignored: Vec<Ignored>,
    text: &'a str,
    /// The user's own role of that name.
    own: Option<&'a Role>,
    config: &'a Config,
}

impl Held<'_> {
    fn hold(&mut self) {
        self.hold_category();
        self.hold_model();
        self.hold_permissions();
        self.hold_tools();
        self.hold_disallowed_tools();
        self.hold_permission_mode();
        self.hold_scope();
        self.hold_mcp();
    }

    /// Restores the category unless the file's category is as strict in every respect.
    fn hold_category(&mut self) {
        let before = self.own.map_or(CODING, |own| &own.category);
        let may = match (self.config.category(&self.role.category), self.config.category(before)) {
            (Ok(one), Ok(than)) => {
                self.role.category == before || self.is_as_strict(one, than, before)
            }
            // A role of an unknown category is rejected later.
            (Err(_), _) => true,
            (Ok(_), Err(_)) => false,
        };
        if !may {
            let said = std::mem::replace(&mut self.role.category, before.to_string());
            let said = place_of(self.text, "category").map(|_| said);
            self.ignore("category", said, Effect::Loosens(AtMost));
        }
    }

    fn is_as_strict(&self, one: &Category, than: &Category, before: &str) -> bool {
        // Destructured, so that a new key is not forgotten here.
        let Category {
            inactivity_timeout,
            max_restarts,
            budget_usd,
            max_turns,
            timeout,
            api_patience,
            api_timeout,
            // A question that waits longer allows nothing.
            answer_timeout: _,
            on_crash,
            result: _,
            monitors,
            permissions,
            verbosity: _,
            idle_hold,
            thread_verbosity: _,
        } = one;
        let usd = |limit: Option<f64>| limit.unwrap_or(f64::INFINITY);
        let turns = |limit: Option<u32>| limit.unwrap_or(u32::MAX);
        let model = |category: &str| self.is_priced(None, category);
        usd(*budget_usd) <= usd(than.budget_usd)
            && turns(*max_turns) <= turns(than.max_turns)
            && timeout.map_or(u64::MAX, |span| span.as_secs())
                <= than.timeout.map_or(u64::MAX, |span| span.as_secs())
            && *max_restarts <= than.max_restarts
            && idle_hold.as_duration() <= than.idle_hold.as_duration()
            && api_patience.as_duration() <= than.api_patience.as_duration()
            && api_timeout.as_duration() <= than.api_timeout.as_duration()
            // The permitted silence is not a right. A role that overrides one of the user's is
            // bounded all the same.
            && (self.own.is_none()
                || inactivity_timeout.as_duration() <= than.inactivity_timeout.as_duration())
            && (*on_crash == OnCrash::Ask || than.on_crash == OnCrash::Resume)
            && watches_as_much(*monitors, than.monitors)
            && self.permits_no_more(permissions, &than.permissions)
            && (model(&self.role.category) || !model(before))
    }

    /// Whether the permissions of a category allow nothing that those of another one do not.
    fn permits_no_more(&self, one: &Permissions, than: &Permissions) -> bool {
        let all = &self.config.permissions;
        let within = |some: &[Rule], others: [&Vec<Rule>; 2]| {
            some.iter().all(|rule| others.iter().any(|list| list.contains(rule)))
        };
        let of_role = self.own.and_then(|own| own.permissions.mode);
        let [mode, before] = [one, than].map(|of| of.mode.or(all.mode).unwrap_or_default());
        // Under `deny` an additional `ask` rule would ask about calls that were refused before.
        let refuses = of_role.unwrap_or(before) == Mode::Deny;
        strictness(mode) >= strictness(before)
            && within(&one.allow, [&than.allow, &all.allow])
            && within(&than.deny, [&one.deny, &all.deny])
            && within(&than.ask, [&one.ask, &all.ask])
            && (!refuses || within(&one.ask, [&than.ask, &all.ask]))
    }

    /// Restores the model if the file's model has no price. Some agents report tokens and no cost:
    /// without a price for their model, a cost limit has no effect on them.
    fn hold_model(&mut self) {
        let own = self.own.and_then(|own| own.model.clone());
        let category = self.own.map_or(CODING, |own| &own.category);
        let was_priced = self.is_priced(own.as_deref(), category);
        if was_priced && !self.is_priced(self.role.model.as_deref(), &self.role.category) {
            let said = std::mem::replace(&mut self.role.model, own);
            self.ignore("model", said, Effect::Loosens(AtMost));
        }
    }

    fn is_priced(&self, of_role: Option<&str>, category: &str) -> bool {
        let (model, _) = resolve_model(None, of_role, category, self.config);
        model.is_some_and(|model| self.config.models.prices.contains_key(&model))
    }

    fn hold_permissions(&mut self) {
        let none = Permissions::default();
        let own = self.own.map_or(&none, |own| &own.permissions);
        let all = self.config.permissions.mode;
        let of_category = self
            .config
            .category(&self.role.category)
            .ok()
            .and_then(|category| category.permissions.mode);
        let otherwise = of_category.or(all).unwrap_or_default();
        let before = own.mode.unwrap_or(otherwise);
        let said = std::mem::replace(&mut self.role.permissions, own.clone());
        let mode = said.mode.unwrap_or(otherwise);
        let permissions = &mut self.role.permissions;
        if strictness(mode) > strictness(before) {
            permissions.mode = said.mode;
        }
        // Under `deny` an additional `ask` rule would ask about calls that were refused before.
        let asks = permissions.mode.unwrap_or(before) != Mode::Deny;
        unite(&mut permissions.deny, &said.deny);
        if asks {
            unite(&mut permissions.ask, &said.ask);
        }
        if strictness(mode) < strictness(before) {
            self.ignore("permissions.mode", said.mode, Effect::Loosens(StricterMode));
        }
        if said.allow.iter().any(|rule| !own.allow.contains(rule)) {
            self.ignore("permissions.allow", said_of(&said.allow), Effect::Loosens(Fewer));
        }
        if own.ask.iter().any(|rule| !said.ask.contains(rule)) || (!asks && !said.ask.is_empty()) {
            self.ignore("permissions.ask", said_of(&said.ask), Effect::Loosens(Same));
        }
        if own.deny.iter().any(|rule| !said.deny.contains(rule)) {
            self.ignore("permissions.deny", said_of(&said.deny), Effect::Loosens(More));
        }
    }

    fn hold_tools(&mut self) {
        let rule = |text: &String| Rule::try_from(text.clone()).ok();
        let rules = |list: &Vec<String>| list.iter().filter_map(rule).collect::<Vec<_>>();
        let Some(own) = self.own.and_then(|own| own.tools.as_ref()) else { return };
        let known = rules(own);
        if known.iter().any(Rule::is_every) {
            return;
        }
        let is_known = |rule: &Rule| known.iter().any(|known| known.covers(rule));
        if !self.role.tools.as_ref().is_some_and(|said| rules(said).iter().all(is_known)) {
            let said = self.role.tools.replace(own.clone());
            self.ignore("tools", said, Effect::Loosens(Fewer));
        }
    }

    fn hold_disallowed_tools(&mut self) {
        let Some(own) = self.own.map(|own| &own.disallowed_tools) else { return };
        let said = self.role.disallowed_tools.clone();
        unite(&mut self.role.disallowed_tools, own);
        if self.role.disallowed_tools.len() > said.len() {
            self.ignore("disallowedTools", said_of(&said), Effect::Loosens(More));
        }
    }

    fn hold_permission_mode(&mut self) {
        let before = self.own.and_then(|own| own.permission_mode);
        let said = self.role.permission_mode;
        if !is_as_strict_mode(said, before) {
            self.role.permission_mode = before;
            self.ignore("permissionMode", said, Effect::Loosens(StricterMode));
        }
    }

    /// Restores the scope unless the file's is as narrow: an edit outside of it is a monitor's
    /// finding.
    fn hold_scope(&mut self) {
        let own = self.own.map(|own| own.scope.clone()).unwrap_or_default();
        let said = &self.role.scope;
        let as_narrow = match own.is_empty() {
            // Without a scope, it is the agent's directory.
            true => !said.iter().any(|glob| glob.trim_start().starts_with("//")),
            false => !said.is_empty() && said.iter().all(|glob| own.contains(glob)),
        };
        if !as_narrow {
            let said = std::mem::replace(&mut self.role.scope, own);
            self.ignore("scope", said_of(&said), Effect::Loosens(Fewer));
        }
    }

    /// Restores the MCP tools unless the file's are as few.
    fn hold_mcp(&mut self) {
        let before = self.own.and_then(|own| own.mcp);
        let said = self.role.mcp;
        let is_as_strict = match (said, before) {
            _ if said == before => true,
            (Some(Access::None), _) => true,
            (Some(Access::ReadOnly), before) => before != Some(Access::None),
            _ => false,
        };
        if !is_as_strict {
            self.role.mcp = before;
            self.ignore("mcp", said, Effect::Loosens(Fewer));
        }
    }

    /// Records a value that does not count; `said` is null if the file leaves the key out.
    fn ignore(&mut self, key: &str, said: impl Serialize, effect: Effect) {
        let front = key.split('.').next().unwrap_or(key);
        let place = place_of(self.text, front).or_else(|| place_of(self.text, &canonical(front)));
        self.ignored.push(Ignored {
            key: key.into(),
            value: serde_json::to_value(said).unwrap_or(Value::Null),
            effect: effect.as_str(),
            file: Some(self.role.file.clone()),
            line: place.map(|place| place.line),
        });
    }
}

/// Returns `None` for an empty list, because it equals an omitted key.
fn said_of<T>(list: &[T]) -> Option<&[T]> {
    Some(list).filter(|list| !list.is_empty())
}

fn unite<T: Clone + PartialEq>(rules: &mut Vec<T>, more: &[T]) {
    for rule in more {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
}

fn watches_as_much(one: Responses, than: Responses) -> bool {
    let Responses { loops, drift, spiral, budget } = one;
    loops >= than.loops && drift >= than.drift && spiral >= than.spiral && budget >= than.budget
}

/// Whether a mode allows nothing that `than` does not. `plan` and `auto` are not comparable with
/// modes that ask or refuse: `plan` reads without asking, and `auto` edits if its model finds that
/// harmless.
fn is_as_strict_mode(mode: Option<PermissionMode>, than: Option<PermissionMode>) -> bool {
    use PermissionMode::{AcceptEdits, Auto, BypassPermissions, Default, DontAsk, Plan};
    match (than, mode) {
        (None | Some(BypassPermissions), _) => true,
        (Some(_), None | Some(BypassPermissions)) => false,
        (Some(AcceptEdits | Auto), Some(Default | DontAsk)) | (Some(Default), Some(DontAsk)) => {
            true
        }
        (Some(than @ (AcceptEdits | Auto | Default | DontAsk | Plan)), Some(mode)) => than == mode,
    }
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
mod tests;
