/* The page of one job: fetched again and again until the job is finished, and tracebacks are copied by a button.
   Without this script there is a link to fetch the page again; text can be copied as anywhere. */

"use strict";

{
    const FIRST_PAUSE = 1000; // milliseconds; each pause is longer than the one before
    const LONGEST_PAUSE = 5000;
    const GROWTH = 1.15;
    const PATIENCE = 10000; // for one answer
    const MOST_FAILURES = 5; // in a row

    const job = document.getElementById("skipqueue-job");
    const live = document.getElementById("skipqueue-live"); // only where the job is not finished
    const liveText = document.getElementById("skipqueue-live-text");

    let pause = FIRST_PAUSE;
    let failures = 0;
    let timer = null;

    const statusOf = (place) => place.querySelector("[data-status]");

    const say = (state) => {
        live.dataset.state = state;
        live.querySelector("span").textContent = live.dataset[state] ?? "";
    };

    /* Whether somebody is at something that new content would take away. */
    const isInUse = () => {
        const selection = document.getSelection();
        const isSelected = selection.type === "Range" && job.contains(selection.anchorNode);
        const isTyping = document.activeElement?.matches("#skipqueue-job :is(input, select, textarea)");
        return isSelected || isTyping || job.querySelector(":active") !== null;
    };

    const show = (page) => {
        const states = new Map([...job.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
        const focus = [...job.querySelectorAll("a, button, summary, pre")].indexOf(document.activeElement);
        const before = statusOf(job).dataset.status;
        job.replaceChildren(...page.body.childNodes);
        for (const details of job.querySelectorAll("details[id]")) {
            details.open = states.get(details.id) ?? details.open;
        }
        const now = statusOf(job);
        showCopyButtons();
        if (now.dataset.status !== before) {
            liveText.textContent = now.dataset.liveText;
            pause = FIRST_PAUSE;
        } else if (focus >= 0) {
            job.querySelectorAll("a, button, summary, pre")[focus]?.focus({ preventScroll: true });
        }
    };

    const fetchPage = async () => {
        const address = new URL(window.location.href);
        address.searchParams.set("fragment", "1"); // what else it says stays: such as the database
        const answer = await fetch(address, {
            credentials: "same-origin",
            redirect: "error", // to the login
            signal: AbortSignal.timeout(PATIENCE),
        });
        if (!answer.ok) {
            throw new Error(`${answer.status}`);
        }
        return new DOMParser().parseFromString(await answer.text(), "text/html");
    };

    const refresh = async () => {
        if (document.hidden) {
            return; // until somebody looks again
        }
        if (isInUse()) {
            say("paused");
            later();
            return;
        }
        try {
            const page = await fetchPage();
            failures = 0;
            if (!isInUse()) {
                show(page);
            }
        } catch {
            failures += 1;
        }
        if (failures >= MOST_FAILURES) {
            say("stopped");
        } else if ("final" in statusOf(job).dataset) {
            live.hidden = true;
        } else {
            say("live");
            later();
        }
    };

    const later = () => {
        clearTimeout(timer);
        timer = setTimeout(refresh, pause);
        pause = Math.min(pause * GROWTH, LONGEST_PAUSE);
    };

    const showCopyButtons = () => {
        for (const button of job.querySelectorAll("[data-copy]")) {
            button.hidden = false;
        }
    };

    /* The text of a traceback, folded lines included. */
    const textOf = (id) => [...document.getElementById(id).querySelectorAll("pre")].map((pre) => pre.textContent).join("\n");

    const copy = async (text) => {
        if (navigator.clipboard) {
            return navigator.clipboard.writeText(text);
        }
        const field = document.createElement("textarea"); // a page served by http has no clipboard
        field.value = text;
        document.body.append(field);
        field.select();
        document.execCommand("copy");
        field.remove();
    };

    job.addEventListener("click", async (event) => {
        const button = event.target.closest("[data-copy]");
        if (button) {
            await copy(textOf(button.dataset.copy));
            button.textContent = button.dataset.done;
        }
    });

    showCopyButtons();
    if (live) {
        say("live");
        later();
        document.addEventListener("visibilitychange", () => {
            if (!document.hidden && !live.hidden && live.dataset.state !== "stopped") {
                pause = FIRST_PAUSE;
                clearTimeout(timer);
                refresh();
            }
        });
    }
}
