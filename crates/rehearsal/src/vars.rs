//! `${name}` in the texts of a scenario.

use std::collections::BTreeMap;

/// The values of `${name}`. Scenario variables and the built-in ones hide the environment's.
#[derive(Debug, Clone, Default)]
pub struct Vars {
    env: BTreeMap<String, String>,
    own: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "${{{name}}} has no value: it is neither a variable of the scenario nor in the environment"
)]
pub struct UnknownVariable {
    pub name: String,
}

/// Built-in names and the environment variables that hold their values (contract.md, "Variables
/// every agent gets").
pub const BUILT_IN: [(&str, &str); 8] = [
    ("bead", "MULETEER_BEAD_ID"),
    ("dispatch", "MULETEER_DISPATCH_ID"),
    ("role", "MULETEER_ROLE"),
    ("journal", "MULETEER_JOURNAL"),
    ("purpose", "MULETEER_PURPOSE"),
    ("run", "MULETEER_RUN_ID"),
    ("iteration", "MULETEER_ITERATION"),
    ("attempt", "MULETEER_ATTEMPT"),
];

impl Vars {
    /// Takes the environment and sets the built-in names from it. A name without a variable is
    /// empty.
    pub fn from_env(env: impl IntoIterator<Item = (String, String)>) -> Self {
        let env: BTreeMap<_, _> = env.into_iter().collect();
        let own = BUILT_IN.map(|(name, variable)| {
            (name.to_string(), env.get(variable).cloned().unwrap_or_default())
        });
        Self { own: own.into_iter().collect(), env }
    }

    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.own.insert(name.to_string(), value.into());
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.own.get(name).or_else(|| self.env.get(name)).map(String::as_str)
    }

    /// Returns all values except the environment's. A command of the scenario gets them as
    /// environment variables, so that a prompt's text never becomes part of a command.
    pub fn own(&self) -> impl Iterator<Item = (&str, &str)> {
        self.own.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Replaces `${name}` and `${name:-otherwise}`. `$${` gives `${`, and every other `$` is kept.
    ///
    /// # Errors
    /// A name without a value and without `:-`.
    pub fn expand(&self, text: &str) -> Result<String, UnknownVariable> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, after) = rest.split_at(at);
            if let Some(before) = before.strip_suffix('$') {
                out.push_str(before);
                out.push_str("${");
                rest = &after[2..];
                continue;
            }
            out.push_str(before);
            let Some(end) = after.find('}') else {
                out.push_str(after);
                return Ok(out);
            };
            let (name, otherwise) = match after[2..end].split_once(":-") {
                Some((name, otherwise)) => (name, Some(otherwise)),
                None => (&after[2..end], None),
            };
            match (
                self.get(name).filter(|value| otherwise.is_none() || !value.is_empty()),
                otherwise,
            ) {
                (Some(value), _) | (None, Some(value)) => out.push_str(value),
                (None, None) => return Err(UnknownVariable { name: name.to_string() }),
            }
            rest = &after[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_undefined_ones_are_named() {
        let mut vars = Vars::from_env([("MULETEER_BEAD_ID".to_string(), "b-7".to_string())]);
        vars.set("empty", "");
        for (text, wanted) in [
            ("${bead}.txt", "b-7.txt"),
            ("$bead costs $5 {x}", "$bead costs $5 {x}"),
            ("$${bead}", "${bead}"),
            ("${run}|${run:-none}|${nope:-a b}", "|none|a b"),
            ("${empty:-x}${empty}", "x"),
            ("open ${bead", "open ${bead"),
        ] {
            assert_eq!(vars.expand(text).unwrap(), wanted, "{text}");
        }
        assert_eq!(vars.expand("a ${nope}").unwrap_err().name, "nope");
    }
}
