/* Filters stand open beside a list that has room for them, and are folded above one that has not. */
"use strict";
{
    const filters = document.querySelector(".skipqueue-filters");
    const roomy = window.matchMedia("(min-width: 1025px)");
    const fold = () => { filters.open = roomy.matches; };
    if (filters) {
        fold();
        roomy.addEventListener("change", fold);
    }
}
