"""The admin pages for jobs, queues and workers. `django_skipqueue.admin` registers them."""
