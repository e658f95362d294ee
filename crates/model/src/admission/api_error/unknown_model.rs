//! Recognises an error that says that the requested model cannot be used.

use crate::agent::event::TurnError;

/// Signs of an error about a model that does not exist, or that the account may not use.
const SIGNS: [&str; 18] = [
    "not found",
    "not_found",
    "not exist",
    "no such",
    "unknown",
    "unrecognized",
    "unrecognised",
    "invalid",
    "unsupported",
    "not supported",
    "not available",
    "unavailable",
    "not allowed",
    "no access",
    "not have access",
    "not a valid",
    "issue with the selected",
    "cannot find",
];

/// Returns true if the failure of a turn, or of a process (no `error`), is about the model that was
/// requested for it. A failure of another kind says nothing about the model.
pub fn is_reported(model: &str, error: Option<TurnError>, status: Option<u16>, said: &str) -> bool {
    let may_be = match error {
        None | Some(TurnError::ApiError | TurnError::Other) => true,
        // A model that the account may not use.
        Some(TurnError::Auth) => status == Some(403),
        Some(
            TurnError::RateLimit
            | TurnError::MaxTurns
            | TurnError::Budget
            | TurnError::StructuredOutput
            | TurnError::Context
            | TurnError::Interrupted
            | TurnError::Mistakes,
        ) => false,
    };
    let may_be = may_be && matches!(status, None | Some(400 | 403 | 404 | 422));
    if !may_be {
        return false;
    }
    if status == Some(404) {
        return true;
    }
    let said = said.to_lowercase();
    let names = said.contains("model") || said.contains(&model.to_lowercase());
    names && SIGNS.iter().any(|sign| said.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_the_model_are_told_from_others() {
        use TurnError::{ApiError, Auth, Context, Interrupted, Other, RateLimit};
        for (error, status, said, expected) in [
            (Some(ApiError), Some(404), "", true),
            (Some(ApiError), Some(400), "The requested model 'big-2' does not exist.", true),
            (Some(ApiError), Some(400), "unexpected status 400: Unsupported value: 'big-2'", true),
            (Some(Other), None, "There's an issue with the selected model (big-2).", true),
            (Some(Other), None, "Model not found: openai/big-2. Did you mean: big?", true),
            (Some(Auth), Some(403), "You do not have access to the model `big-2`", true),
            (None, None, "error: unknown model `BIG-2`", true),
            (Some(Auth), Some(401), "invalid key for the model", false),
            (Some(Auth), None, "invalid api key", false),
            (Some(ApiError), Some(500), "model not found", false),
            (Some(ApiError), Some(400), "invalid tool schema", false),
            (Some(ApiError), None, "stream disconnected", false),
            (Some(RateLimit), Some(429), "model big-2 not available", false),
            (Some(Context), None, "unknown model", false),
            (Some(Interrupted), None, "model not found", false),
            (None, None, "panic: no such file", false),
        ] {
            assert_eq!(is_reported("big-2", error, status, said), expected, "{status:?} {said}");
        }
    }
}
