//! Finds the model provider of Codex: from `config.toml` in its home, or from its arguments.

use toml_edit::{Document, Item};

/// The provider's URL and the variable that holds its key, if they are configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provider {
    pub base_url: Option<String>,
    pub env_key: Option<String>,
}

/// Returns the provider that a configuration, changed by the arguments, names. A configuration that
/// is not valid TOML names none; Codex itself reports the fault.
pub fn provider(config: &str, args: &[String]) -> Provider {
    let document = Document::parse(config).ok();
    let look = |path: &[&str]| {
        let key = path.join(".");
        let changed = changes(args).filter(|(name, _)| *name == key).last();
        let said = changed.map(|(_, value)| value.trim_matches('"').to_string());
        said.or_else(|| {
            let mut item: &Item = document.as_ref()?.as_item();
            for name in path {
                item = item.get(name)?;
            }
            item.as_str().map(str::to_string)
        })
    };
    let Some(name) = look(&["model_provider"]).filter(|name| name != "openai") else {
        return Provider { base_url: look(&["openai_base_url"]), env_key: None };
    };
    Provider {
        base_url: look(&["model_providers", &name, "base_url"]),
        env_key: look(&["model_providers", &name, "env_key"]),
    }
}

/// Returns the arguments `-c key=value`, in any of their spellings.
fn changes(args: &[String]) -> impl Iterator<Item = (&str, &str)> {
    let after = args.iter().zip(args.iter().skip(1));
    let apart = after
        .filter(|(flag, _)| matches!(flag.as_str(), "-c" | "--config"))
        .map(|(_, change)| change.as_str());
    let joined = args
        .iter()
        .filter_map(|arg| arg.strip_prefix("--config=").or_else(|| arg.strip_prefix("-c")));
    apart
        .chain(joined)
        .filter_map(|change| change.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
model_provider = \"near\"\n\
openai_base_url = \"http://own/v1\"\n\
[model_providers.near]\n\
base_url = \"http://near/v1\"\n\
env_key = \"NEAR_KEY\"\n\
[model_providers.far]\n\
base_url = \"http://far/v1\"\n";

    fn told(config: &str, args: &[&str]) -> (Option<String>, Option<String>) {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_string()).collect();
        let Provider { base_url, env_key } = provider(config, &args);
        (base_url, env_key)
    }

    #[test]
    fn the_provider_is_the_one_that_is_named() {
        let some = |text: &str| Some(text.to_string());
        assert_eq!(told(CONFIG, &[]), (some("http://near/v1"), some("NEAR_KEY")));
        for args in [
            &["-c", "model_provider=far"][..],
            &["-cmodel_provider=\"far\""],
            &["--config=model_provider=far"],
        ] {
            assert_eq!(told(CONFIG, args), (some("http://far/v1"), None), "{args:?}");
        }
        let moved = ["-c", "model_providers.near.base_url=\"http://moved\""];
        assert_eq!(told(CONFIG, &moved), (some("http://moved"), some("NEAR_KEY")));
        assert_eq!(
            told(CONFIG, &["-c", "model_provider=\"openai\""]),
            (some("http://own/v1"), None)
        );
        assert_eq!(told(CONFIG, &["-c", "model_provider=nobody"]), (None, None));
        assert_eq!(told("", &[]), (None, None));
        assert_eq!(told("model_provider = [[[", &["-c"]), (None, None));
    }
}
