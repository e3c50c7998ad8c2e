// The one moment that all pages show: now, or a moment of the past. It lives in the address.
//
// `at` is what the address says, in the forms of --at: 14:20, 14:20:07, -10m, a date with a time, a
// revision; empty means now. Answers about the past are asked for by the revision that the gateway
// found for it, so that every part of a page is of one moment. What time it is then is what was asked
// for: how long a pod has waited hangs on that, and not on when something last happened.
import { clock, day, num } from "./format.js";

export const moment = {
  at: "",
  revision: 0,
  time: null, // milliseconds, null where nobody has said
  eventTime: null, // of the newest event by then, of which the state is
  /** @type {any} */
  problem: "", // why there is no answer about the moment that was asked for
  silent: null, // { why, since }: the gateway has no answer since then, in milliseconds; null while it answers
  newest: 0, // the newest revision that the gateway is known to have folded
};

/** Whether the pages show what is now. */
export const isLive = () => !moment.at;

/** The time that the pages show, in milliseconds. */
export const shownTime = () => (isLive() ? Date.now() : (moment.time ?? Date.now()));

/** #1,214,394, as people write a revision. */
export const revisionWords = revision => `#${num(revision)}`;

/** The past as parameters of a request; nothing for now. */
export const pastParameters = () => (isLive() ? {} : { at: String(moment.revision || moment.at) });

// ---- a moment as people write it into a field or an address: what it means, in one form for both ----
//
// An address has times in UTC, as --at and the gateway do; a field has them as the pages show them,
// in the zone of this browser. Pure: it is given what time it is. Invariant: what is shown, read as
// a field, and what is asked, read as an address, are the same moment again.

const AGO = /^-(\d{1,9})([smhd])$/;
const CLOCK = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/;
const DATE =
  /^(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?(Z|[+-]\d{2}:?\d{2})?)?$/;
const PLUS_LOST = /^(\d{4}-\d{2}-\d{2}[T ]\d{2}(?::\d{2}){0,2}(?:\.\d{1,6})?) (?=\d{2}:?\d{2}$)/;
const REVISION = /^#?(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})$/;
const UNIT_MS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A time in milliseconds as headlines and fields have it. */
export const timeWords = ms => `${day(ms)} ${clock(ms)}`;

/** A moment of an address as it was written: a query has the plus of a zone as a space. */
export const withPlus = text => text.replace(PLUS_LOST, "$1+");

/** The zone of this browser, as people call it. */
export const zoneWords = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

/**
 * What a text means at the time `now`: `asked` for the gateway and the address, `shown` for people,
 * and `ms` or `revision` where it is one of these. A time without a zone is of this browser where
 * `local`, else in UTC. What is not `read` stays as it is: the gateway says what is wrong with it.
 */
export function askedMoment(text, now, local = false) {
  const said = text.trim();
  const [, revision] = REVISION.exec(said) ?? [];
  if (revision) {
    const number = Number(revision.replaceAll(",", ""));
    return { asked: String(number), shown: `#${num(number)}`, revision: number, read: true };
  }
  const found = said === "now" ? null : time(said, now, local);
  if (!found) return { asked: said.replaceAll(",", " "), shown: said, read: said === "now" };
  const part = found.part ? `.${found.part}` : "";
  return {
    asked: `${new Date(found.ms).toISOString().slice(0, 19)}${part}Z`,
    shown: timeWords(found.ms) + part,
    ms: found.ms,
    read: true,
  };
}

/** Whole seconds in milliseconds, and what is written behind their point; null for what is no time. */
function time(text, now, local) {
  const ms = ago(text, now) ?? today(text, now, local);
  if (ms !== null) return ms > 0 ? { ms } : null;
  const [, year, month, date, hour = 0, minute = 0, second = 0, part = "", zone = ""] =
    DATE.exec(text) ?? [];
  if (!year) return null;
  const hands = [hour, minute, second].map(Number);
  const utc = Date.UTC(Number(year), Number(month) - 1, Number(date), ...hands);
  if (new Date(utc).toISOString().slice(0, 10) !== text.slice(0, 10) || !isClock(hands))
    return null;
  const here = () => new Date(Number(year), Number(month) - 1, Number(date), ...hands).getTime();
  const meant = !zone && local ? here() : utc - offset(zone);
  return meant > 0 ? { ms: meant, part } : null;
}

function ago(text, now) {
  const [, count, unit] = AGO.exec(text) ?? [];
  return count ? wholeSeconds(now - Number(count) * UNIT_MS[unit]) : null;
}

/** The last such time of a day that has come. */
function today(text, now, local) {
  const found = CLOCK.exec(text);
  const [hour, minute, second] = (found ?? []).slice(1).map((part = "0") => Number(part));
  if (!found || !isClock([hour, minute, second])) return null;
  const at = new Date(now);
  const set = () =>
    local ? at.setHours(hour, minute, second, 0) : at.setUTCHours(hour, minute, second, 0);
  if (set() <= now) return at.getTime();
  if (local) at.setDate(at.getDate() - 1);
  else at.setUTCDate(at.getUTCDate() - 1);
  return set();
}

/** @param {number[]} clock */
const isClock = ([hour, minute, second]) => hour <= 23 && minute <= 59 && second <= 59;

const wholeSeconds = ms => Math.floor(ms / 1000) * 1000;

function offset(zone) {
  const [, sign, hours, minutes] = /^([+-])(\d{2}):?(\d{2})$/.exec(zone) ?? [];
  return sign ? Number(`${sign}1`) * (Number(hours) * UNIT_MS.h + Number(minutes) * UNIT_MS.m) : 0;
}
