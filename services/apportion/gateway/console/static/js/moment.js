// The moment that all pages show: now, or a moment of the past. It is part of the address.
//
// `at` has the forms of --at: 14:20, 14:20:07, -10m, a date with a time, or a revision; empty means now.
// Requests about the past use the revision that the gateway resolved, so that all parts of a page agree.
// The time of a moment is the requested one, not that of its last event, because durations depend on it.
import { clock, day, num } from "./format.js";

export const moment = {
  at: "",
  revision: 0,
  time: null, // milliseconds; null if unknown
  eventTime: null, // of the newest event before `time`
  /** @type {any} */
  problem: "", // why the requested moment has no answer
  silent: null, // { why, since } while the gateway is unreachable, since a time in milliseconds; else null
  newest: 0, // the newest revision that the gateway has reported
};

/** Whether the pages show the present. */
export const isLive = () => !moment.at;

/** The time of the moment that the pages show, in milliseconds. */
export const shownTime = () => (isLive() ? Date.now() : (moment.time ?? Date.now()));

/** A revision as text: #1,214,394. */
export const revisionWords = revision => `#${num(revision)}`;

/** The request parameters for the moment that the pages show; none for now. */
export const pastParameters = () => (isLive() ? {} : { at: String(moment.revision || moment.at) });

// ---- parsing a moment from a field or an address ----
//
// Addresses have times in UTC, as --at and the gateway do; fields have local times. Pure: the current time is
// an argument. Invariant: `shown`, parsed as a field, and `asked`, parsed as an address, are the same moment.

const AGO = /^-(\d{1,9})([smhd])$/;
const CLOCK = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/;
const DATE =
  /^(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?(Z|[+-]\d{2}:?\d{2})?)?$/;
const PLUS_LOST = /^(\d{4}-\d{2}-\d{2}[T ]\d{2}(?::\d{2}){0,2}(?:\.\d{1,6})?) (?=\d{2}:?\d{2}$)/;
const REVISION = /^#?(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})$/;
const UNIT_MS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A timestamp in milliseconds as local date and time. */
export const timeWords = ms => `${day(ms)} ${clock(ms)}`;

/** Restore the plus of a time zone, which a query string turns into a space. */
export const withPlus = text => text.replace(PLUS_LOST, "$1+");

/** The name of the browser's time zone. */
export const zoneWords = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

/**
 * Parse a moment at the time `now`. Returns `asked` for the gateway and the address, `shown` for display, and
 * `ms` or `revision` if it is one of these. A time without a zone is local if `local`, else UTC. Text that
 * cannot be parsed (`read` is false) is returned unchanged, and the gateway reports the error.
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

/** A time in milliseconds, with the digits of its fraction of a second; null if the text is not a time. */
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

/** The most recent occurrence of a time of day. */
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
