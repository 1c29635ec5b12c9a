/* Fetches the page again at the interval that the user has chosen, and changes what is different in its content.
   The server answers 304 as long as nothing is. Without this script there is a link that loads the page.
   Nothing is changed while somebody selects, reads or types something that would be taken away. */

"use strict";

{
    const KEY = "django_skipqueue.refresh"; // in localStorage: seconds, 0 for never
    const PATIENCE = 15000; // milliseconds for one answer
    const TICK = 1000;

    const bar = document.getElementById("skipqueue-refresh");
    const choice = bar.querySelector("select");
    const age = bar.querySelector("[data-age]");
    const status = bar.querySelector("[role=status]");
    const content = document.querySelector("[data-refreshed]");

    let etag = "";
    let updatedAt = Date.now();
    let askedAt = Date.now();
    let isAsking = false;
    let isStopped = false;

    const inWords = (milliseconds) => {
        const seconds = Math.round(milliseconds / 1000);
        return seconds < 120 ? `${seconds} s` : `${Math.floor(seconds / 60)} min`;
    };

    const say = (state, text, isNews = false) => {
        bar.dataset.state = state;
        age.textContent = text;
        if (isNews && status.textContent !== text) {
            status.textContent = text;
        }
    };

    /* Whether a field has another value than the page came with. */
    const isChanged = (field) => {
        if (field.matches("select")) {
            return field.selectedIndex !== Math.max(0, [...field.options].findIndex((each) => each.defaultSelected));
        }
        return field.type === "checkbox" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
    };

    /* Whether somebody is at something that new content would take away. */
    const isInUse = () => {
        const selection = document.getSelection();
        const active = document.activeElement;
        return (
            (selection.type === "Range" && content.contains(selection.anchorNode)) ||
            (content.contains(active) && active.matches("input, select, textarea, summary, details[open] *")) ||
            content.querySelector(":active") !== null ||
            [...content.querySelectorAll("input, select, textarea")].some(isChanged)
        );
    };

    /* Makes one node like another. Elements stay, and so do focus, places scrolled to, and what is folded. */
    const update = (node, fresh) => {
        if (node.nodeName !== fresh.nodeName) {
            node.replaceWith(fresh);
        } else if (node.nodeType !== Node.ELEMENT_NODE) {
            if (node.data !== fresh.data) {
                node.data = fresh.data;
            }
        } else {
            updateAttributes(node, fresh);
            const [nodes, others] = [[...node.childNodes], [...fresh.childNodes]];
            nodes.slice(others.length).forEach((each) => each.remove());
            others.forEach((each, place) => (place < nodes.length ? update(nodes[place], each) : node.append(each)));
        }
    };

    const updateAttributes = (element, fresh) => {
        const names = new Set([...element.getAttributeNames(), ...fresh.getAttributeNames()]);
        names.delete("open");
        for (const name of names) {
            const value = fresh.getAttribute(name);
            if (value === null) {
                element.removeAttribute(name);
            } else if (element.getAttribute(name) !== value) {
                element.setAttribute(name, value);
            }
        }
    };

    const show = (page) => {
        update(document.querySelector(".skipqueue-nav"), page.querySelector(".skipqueue-nav"));
        const fresh = page.querySelector("[data-refreshed]");
        const boxes = (place) => place.querySelectorAll("input.action-select").length;
        if (boxes(fresh) === boxes(content)) {
            update(content, fresh);
        } else {
            window.location.reload(); // Django's script for the checkboxes has found its own when the page was loaded
        }
    };

    const ask = async () => {
        isAsking = true;
        askedAt = Date.now();
        try {
            const answer = await fetch(window.location.href, {
                cache: "no-store",
                credentials: "same-origin",
                headers: etag ? { "If-None-Match": etag } : {},
                redirect: "manual",
                signal: AbortSignal.timeout(PATIENCE),
            });
            if (answer.type === "opaqueredirect" || answer.status === 403) {
                isStopped = true;
                say("stopped", bar.dataset.stopped, true);
                return;
            }
            if (answer.status !== 304) {
                if (!answer.ok) {
                    throw new Error(`${answer.status}`);
                }
                const text = await answer.text();
                if (isInUse()) {
                    return;
                }
                show(new DOMParser().parseFromString(text, "text/html"));
                etag = answer.headers.get("ETag") ?? "";
            }
            updatedAt = Date.now();
            status.textContent = "";
        } catch {
            say("failing", bar.dataset.failing, true);
        } finally {
            isAsking = false;
        }
    };

    const tick = () => {
        const seconds = Number(choice.value);
        if (isStopped || document.hidden || isAsking) {
            return;
        }
        if (seconds && isInUse()) {
            say("paused", bar.dataset.paused);
        } else if (seconds && Date.now() - askedAt >= seconds * 1000) {
            ask();
        } else if (bar.dataset.state !== "failing" || Date.now() - updatedAt < TICK) {
            say(seconds ? "live" : "off", bar.dataset.updated.replace("{}", inWords(Date.now() - updatedAt)));
        }
    };

    const remembered = () => {
        try {
            return localStorage.getItem(KEY);
        } catch {
            return null; // the browser keeps nothing for this site
        }
    };

    const remember = () => {
        try {
            localStorage.setItem(KEY, choice.value);
        } catch {
            // the choice holds for this page
        }
    };

    const known = remembered();
    if (known !== null && [...choice.options].some((option) => option.value === known)) {
        choice.value = known;
    }
    choice.closest("label").hidden = false;
    choice.addEventListener("change", () => {
        remember();
        tick();
    });
    bar.querySelector("a").addEventListener("click", (event) => {
        event.preventDefault();
        if (!isAsking && !isStopped) {
            ask().then(tick);
        }
    });
    document.addEventListener("visibilitychange", tick);
    for (const select of document.querySelectorAll("select[data-submits]")) {
        select.form.querySelector("[type=submit]").hidden = true;
        select.addEventListener("change", () => select.form.requestSubmit());
    }
    setInterval(tick, TICK);
}
