//! The use of the model API: its tokens and its cost.

use crate::agent::event::{ModelUsage, TurnResult};
use crate::dispatch::Dispatch;
use crate::event::Event;

/// Returns the use that a turn's result adds. A CLI that reports the use of the turn is believed.
/// If it reports the total of its process, the use counted before is subtracted.
pub(super) fn of_turn(d: &Dispatch, result: &TurnResult) -> Vec<Event> {
    if !result.per_model_turn.is_empty() {
        return result.per_model_turn.iter().filter_map(|usage| used(d, usage)).collect();
    }
    let model = || model_name(d, None);
    if d.created.calls.is_some() {
        // Such an agent reported its cost during the turn.
        return vec![];
    }
    let (told, counted) = match result.per_session.is_empty() {
        true => (&result.per_model, &d.process().usage.by_model),
        false => (&result.per_session, &d.spend.session),
    };
    if !told.is_empty() {
        let new = told.iter().map(|now| {
            // A total without a model is that of all models that the session has had.
            let (model, before) = match now.model.as_str() {
                "" => (model(), total_of(counted.values())),
                name => (name.to_string(), counted.get(name).cloned().unwrap_or_default()),
            };
            ModelUsage {
                input: now.input.saturating_sub(before.input),
                output: now.output.saturating_sub(before.output),
                cache_read: now.cache_read.saturating_sub(before.cache_read),
                cache_write: now.cache_write.saturating_sub(before.cache_write),
                // The counted cost may be that of a price, while the CLI reports tokens only.
                cost_usd: (now.cost_usd - before.cost_usd).max(0.0),
                model,
            }
        });
        return new.filter_map(|usage| used(d, &usage)).collect();
    }
    let before =
        counted.values().map(|usage| usage.cost_usd).sum::<f64>() + d.process().usage.calls_usd;
    // Sums of many small amounts are not exact.
    let grown = result.cost_usd.map(|total| total - before).filter(|grown| *grown > 1e-9);
    let new =
        grown.map(|cost_usd| ModelUsage { model: model(), cost_usd, ..ModelUsage::default() });
    new.iter().filter_map(|usage| used(d, usage)).collect()
}

/// Returns the use that one call of the model adds.
pub(super) fn of_call(d: &Dispatch, tokens: [u64; 4], cost_usd: f64, model: Option<&str>) -> Event {
    let model = model_name(d, model);
    let cost_usd = priced(d, &model, cost_usd, tokens);
    let [input, output, cache_read, cache_write] = tokens;
    Event::UsageRecorded {
        model,
        input,
        output,
        cache_read,
        cache_write,
        cost_usd,
        cumulative: false,
        total_usd: None,
    }
}

/// Returns the increase of a session's total cost. Some processes continue the count of the last
/// one, some begin at zero: a total below the counted amount is a new count.
pub(super) fn cost_so_far(d: &Dispatch, total: f64, model: Option<&str>) -> Option<Event> {
    let total = money(total);
    let counted: f64 = match d.process().usage.session_usd {
        Some(told) => told,
        None => d.spend.session.values().map(|usage| usage.cost_usd).sum(),
    };
    let cost_usd = if total < counted { total } else { total - counted };
    let model = model_name(d, model);
    // Sums of many small amounts are not exact.
    (cost_usd > 1e-9).then_some(Event::UsageRecorded {
        model,
        input: 0,
        output: 0,
        cache_read: 0,
        cache_write: 0,
        cost_usd,
        cumulative: true,
        total_usd: Some(total),
    })
}

/// Returns the use of a cut turn, from its transcript. With `told_again`, the next sum of the CLI
/// includes this use, so it is subtracted then.
pub(super) fn cut_off(d: &Dispatch, new: &ModelUsage, told_again: bool) -> Option<Event> {
    let mut event = used(d, new)?;
    if let Event::UsageRecorded { cumulative, .. } = &mut event {
        *cumulative = told_again;
    }
    Some(event)
}

fn used(d: &Dispatch, new: &ModelUsage) -> Option<Event> {
    let ModelUsage { mut model, input, output, cache_read, cache_write, cost_usd } = new.clone();
    if model.is_empty() {
        model = model_name(d, None);
    }
    let tokens = [input, output, cache_read, cache_write];
    let cost_usd = priced(d, &model, cost_usd, tokens);
    (cost_usd > 0.0 || tokens != [0; 4]).then_some(Event::UsageRecorded {
        model,
        input,
        output,
        cache_read,
        cache_write,
        cost_usd,
        cumulative: true,
        total_usd: None,
    })
}

/// Returns the name under which use is counted: the one that was reported, else that of the
/// process.
fn model_name(d: &Dispatch, reported: Option<&str>) -> String {
    let known = reported.map(str::to_string).or_else(|| d.model_of_process().cloned());
    known.unwrap_or_else(|| "unknown".into())
}

fn total_of<'a>(all: impl Iterator<Item = &'a ModelUsage>) -> ModelUsage {
    all.fold(ModelUsage::default(), |sum, one| ModelUsage {
        model: String::new(),
        input: sum.input.saturating_add(one.input),
        output: sum.output.saturating_add(one.output),
        cache_read: sum.cache_read.saturating_add(one.cache_read),
        cache_write: sum.cache_write.saturating_add(one.cache_write),
        cost_usd: sum.cost_usd + one.cost_usd,
    })
}

/// Returns the reported cost, or else the cost of the tokens at the configured price.
fn priced(d: &Dispatch, model: &str, told: f64, tokens: [u64; 4]) -> f64 {
    // Some CLIs report the session's cost separately from its tokens.
    if told != 0.0 || d.process().usage.session_usd.is_some() {
        return money(told);
    }
    let [input, output, cache_read, cache_write] = tokens;
    let models = [Some(model), d.model_of_process().map(String::as_str)];
    let price = d.created.api.price_of(models.into_iter().flatten());
    price.map_or(0.0, |price| money(price.of(input, output, cache_read, cache_write)))
}

/// Limits a claimed cost to a value that can be added up: an absurd claim must not spoil the sums.
fn money(usd: f64) -> f64 {
    if usd.is_finite() { usd.clamp(0.0, 1e6) } else { 0.0 }
}
