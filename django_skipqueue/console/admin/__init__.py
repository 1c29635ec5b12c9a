"""The pages of the admin: of jobs, queues and workers. `django_skipqueue.admin` registers them."""
